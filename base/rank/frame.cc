#include "base/rank/frame.h"

#include <absl/strings/str_cat.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/limits.h"

namespace fsdpd {
namespace {

constexpr size_t kHeaderBytes = 4;

uint32_t DecodeLength(const char* header) {
  const auto* b = reinterpret_cast<const unsigned char*>(header);
  return b[0] | b[1] << 8 | b[2] << 16 | static_cast<uint32_t>(b[3]) << 24;
}

absl::Status CheckLength(uint32_t length) {
  if (length <= kMaxFrameBytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("frame of ", length, " bytes is over the limit of ", kMaxFrameBytes));
}

// `*got` < size at the end of the stream only.
absl::Status ReadFully(int fd, char* data, size_t size, size_t* got) {
  *got = 0;
  while (*got < size) {
    const ssize_t n = read(fd, data + *got, size - *got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == ECONNRESET) return absl::OkStatus();
    if (n < 0) return ErrnoStatus("read");
    if (n == 0) return absl::OkStatus();
    *got += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AppendFrame(const google::protobuf::MessageLite& message, std::string* bytes) {
  const size_t size = message.ByteSizeLong();
  if (size > kMaxFrameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("message of ", size, " bytes is over the frame limit of ", kMaxFrameBytes));
  }
  for (size_t i = 0; i < kHeaderBytes; ++i) *bytes += static_cast<char>(size >> (8 * i));
  message.AppendToString(bytes);
  return absl::OkStatus();
}

absl::Status WriteFrame(int fd, const google::protobuf::MessageLite& message) {
  std::string bytes;
  FSDPD_RETURN_IF_ERROR(AppendFrame(message, &bytes));
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("send");
    sent += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status ReadFrame(int fd, google::protobuf::MessageLite* message) {
  char header[kHeaderBytes];
  size_t got = 0;
  absl::Status status = ReadFully(fd, header, kHeaderBytes, &got);
  if (!status.ok()) return status;
  if (got == 0) return absl::OutOfRangeError("the peer closed the connection");
  if (got < kHeaderBytes) return absl::DataLossError("the stream ended inside a frame's length");
  const uint32_t length = DecodeLength(header);
  status = CheckLength(length);
  if (!status.ok()) return status;
  std::string payload(length, '\0');
  status = ReadFully(fd, payload.data(), length, &got);
  if (!status.ok()) return status;
  if (got < length) {
    return absl::DataLossError(
        absl::StrCat("the stream ended after ", got, " of a frame's ", length, " bytes"));
  }
  if (!message->ParseFromString(payload)) {
    return absl::DataLossError(absl::StrCat("frame of ", length, " bytes is not a ", message->GetTypeName()));
  }
  return absl::OkStatus();
}

absl::Status FrameBuffer::Next(std::string* payload, bool* complete) {
  *complete = false;
  if (pending_bytes() < kHeaderBytes) return absl::OkStatus();
  const uint32_t length = DecodeLength(bytes_.data() + consumed_);
  absl::Status status = CheckLength(length);
  if (!status.ok()) return status;
  if (pending_bytes() < kHeaderBytes + length) return absl::OkStatus();
  payload->assign(bytes_, consumed_ + kHeaderBytes, length);
  consumed_ += kHeaderBytes + length;
  if (consumed_ == bytes_.size() || consumed_ > kMaxFrameBytes) {
    bytes_.erase(0, consumed_);
    consumed_ = 0;
  }
  *complete = true;
  return absl::OkStatus();
}

}  // namespace fsdpd
