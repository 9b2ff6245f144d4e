#include "coordinator/nodes/stream_outbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace fsdpd {
namespace {

v1::CoordinatorMessage StopOf(const std::string& job) {
  v1::CoordinatorMessage message;
  message.mutable_stop()->set_job_id(job);
  return message;
}

TEST(StreamOutbox, DeliversInOrderWithGeneration) {
  StreamOutbox outbox(7, nullptr);
  ASSERT_TRUE(outbox.Push(StopOf("a")));
  ASSERT_TRUE(outbox.Push(StopOf("b")));
  v1::CoordinatorMessage message;
  ASSERT_TRUE(outbox.TryPop(&message));
  EXPECT_EQ(message.stop().job_id(), "a");
  EXPECT_EQ(message.stream_generation(), 7);
  ASSERT_TRUE(outbox.TryPop(&message));
  EXPECT_EQ(message.stop().job_id(), "b");
}

TEST(StreamOutbox, CloseEndsStreamOnce) {
  int ends = 0;
  StreamOutbox outbox(1, [&] { ++ends; });
  ASSERT_TRUE(outbox.Push(StopOf("a")));
  outbox.Close();
  outbox.Close();
  EXPECT_EQ(ends, 1);
  EXPECT_FALSE(outbox.Push(StopOf("b")));
  v1::CoordinatorMessage message;
  EXPECT_FALSE(outbox.TryPop(&message));
}

TEST(StreamOutbox, WakesWriterOnceAfterEachEmptyPop) {
  int wakes = 0;
  StreamOutbox outbox(1, nullptr);
  outbox.SetWriter([&] { ++wakes; });
  ASSERT_TRUE(outbox.Push(StopOf("a")));
  EXPECT_EQ(wakes, 0) << "the writer has not popped yet";
  v1::CoordinatorMessage message;
  ASSERT_TRUE(outbox.TryPop(&message));
  ASSERT_FALSE(outbox.TryPop(&message));
  ASSERT_TRUE(outbox.Push(StopOf("b")));
  ASSERT_TRUE(outbox.Push(StopOf("c")));
  EXPECT_EQ(wakes, 1);
  ASSERT_TRUE(outbox.TryPop(&message));
  ASSERT_TRUE(outbox.Push(StopOf("d")));
  EXPECT_EQ(wakes, 1) << "it is writing";
  outbox.Release();
  EXPECT_FALSE(outbox.TryPop(&message));
  EXPECT_FALSE(outbox.Push(StopOf("e")));
  EXPECT_EQ(wakes, 1);
}

TEST(StreamOutbox, NoMessageWaitsForUnwokenWriter) {
  constexpr int kMessages = 20000;
  StreamOutbox outbox(1, nullptr);
  std::atomic<int> written{0}, inside{0};
  const auto write = [&] {
    v1::CoordinatorMessage message;
    while (outbox.TryPop(&message)) {
      EXPECT_EQ(++inside, 1) << "one writer at a time";
      ++written;
      --inside;
    }
  };
  outbox.SetWriter(write);
  write();
  std::thread other([&] {
    for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(outbox.Push(StopOf("a")));
  });
  for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(outbox.Push(StopOf("b")));
  other.join();
  EXPECT_EQ(written, 2 * kMessages);
}

TEST(StreamOutbox, NeverTouchesReleasedStream) {
  int ends = 0;
  StreamOutbox outbox(1, [&] { ++ends; });
  outbox.Release();
  outbox.Close();
  EXPECT_EQ(ends, 0);
}

TEST(StreamOutbox, ClosesStreamThatDoesNotKeepUp) {
  int ends = 0;
  StreamOutbox outbox(1, [&] { ++ends; });
  for (size_t i = 0; i < kMaxOutboxMessages; ++i) ASSERT_TRUE(outbox.Push(v1::CoordinatorMessage()));
  EXPECT_FALSE(outbox.Push(v1::CoordinatorMessage()));
  EXPECT_EQ(ends, 1);
}

}  // namespace
}  // namespace fsdpd
