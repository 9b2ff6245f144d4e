#include "base/rank/frame.h"

#include <google/protobuf/wrappers.pb.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

namespace fsdpd {
namespace {

using google::protobuf::BytesValue;

struct SocketPair {
  SocketPair() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0); }
  ~SocketPair() {
    close(fd[0]);
    if (fd[1] >= 0) close(fd[1]);
  }
  void CloseWriter() {
    close(fd[1]);
    fd[1] = -1;
  }
  int fd[2];
};

BytesValue Message(size_t size) {
  BytesValue message;
  message.set_value(std::string(size, 'x'));
  return message;
}

TEST(Frame, RoundTripsMessagesOfAllSizes) {
  SocketPair pair;
  for (size_t size : {size_t{0}, size_t{1}, size_t{4095}, size_t{1} << 20}) {
    std::thread writer([&] { EXPECT_TRUE(WriteFrame(pair.fd[1], Message(size)).ok()); });
    BytesValue got;
    EXPECT_TRUE(ReadFrame(pair.fd[0], &got).ok());
    writer.join();
    EXPECT_EQ(got.value().size(), size);
  }
}

TEST(Frame, DistinguishesOrderlyEndFromTornFrame) {
  SocketPair orderly;
  orderly.CloseWriter();
  BytesValue message;
  EXPECT_EQ(ReadFrame(orderly.fd[0], &message).code(), absl::StatusCode::kOutOfRange);

  SocketPair torn;
  ASSERT_EQ(write(torn.fd[1], "\x10\0\0\0abc", 7), 7);
  torn.CloseWriter();
  EXPECT_EQ(ReadFrame(torn.fd[0], &message).code(), absl::StatusCode::kDataLoss);
}

TEST(Frame, RejectsOversizedLengthBeforeAllocating) {
  SocketPair pair;
  ASSERT_EQ(write(pair.fd[1], "\xff\xff\xff\xff", 4), 4);
  BytesValue message;
  EXPECT_EQ(ReadFrame(pair.fd[0], &message).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(WriteFrame(pair.fd[1], Message(5 << 20)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(FrameBuffer, SplitsAcrossReads) {
  std::string stream;
  for (int i = 0; i < 3; ++i) stream += std::string("\x03\0\0\0", 4) + std::string(3, 'a' + i);
  FrameBuffer buffer;
  std::string frames, payload;
  bool complete = false;
  for (const char byte : stream) {
    buffer.Append(&byte, 1);
    ASSERT_TRUE(buffer.Next(&payload, &complete).ok());
    if (complete) frames += payload + ";";
  }
  EXPECT_EQ(frames, "aaa;bbb;ccc;");
  EXPECT_EQ(buffer.pending_bytes(), 0u);
}

TEST(FrameBuffer, RejectsAnInvalidLength) {
  FrameBuffer buffer;
  buffer.Append("\xff\xff\xff\x7f", 4);
  std::string payload;
  bool complete = false;
  EXPECT_EQ(buffer.Next(&payload, &complete).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace fsdpd
