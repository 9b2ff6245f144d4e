#include "coordinator/stream_outbox.h"

#include <gtest/gtest.h>

#include <thread>

namespace fsdpd {
namespace {

v1::CoordinatorMessage StopOf(const std::string& job) {
  v1::CoordinatorMessage message;
  message.mutable_stop()->set_job_id(job);
  return message;
}

TEST(StreamOutbox, DeliversInOrderWithItsEpoch) {
  StreamOutbox outbox(7, nullptr);
  ASSERT_TRUE(outbox.Push(StopOf("a")));
  ASSERT_TRUE(outbox.Push(StopOf("b")));
  v1::CoordinatorMessage message;
  ASSERT_TRUE(outbox.Pop(&message));
  EXPECT_EQ(message.stop().job_id(), "a");
  EXPECT_EQ(message.epoch(), 7);
  ASSERT_TRUE(outbox.Pop(&message));
  EXPECT_EQ(message.stop().job_id(), "b");
}

TEST(StreamOutbox, CloseWakesTheWriterAndEndsTheStreamOnce) {
  int ends = 0;
  StreamOutbox outbox(1, [&] { ++ends; });
  std::thread writer([&] {
    v1::CoordinatorMessage message;
    EXPECT_FALSE(outbox.Pop(&message));
  });
  outbox.Close();
  outbox.Close();
  writer.join();
  EXPECT_EQ(ends, 1);
  EXPECT_FALSE(outbox.Push(StopOf("a")));
}

TEST(StreamOutbox, AReleasedStreamIsNeverTouchedAgain) {
  int ends = 0;
  StreamOutbox outbox(1, [&] { ++ends; });
  outbox.Release();
  outbox.Close();
  EXPECT_EQ(ends, 0);
}

TEST(StreamOutbox, AStreamThatDoesNotKeepUpIsClosed) {
  int ends = 0;
  StreamOutbox outbox(1, [&] { ++ends; });
  for (size_t i = 0; i < kMaxOutboxMessages; ++i) ASSERT_TRUE(outbox.Push(v1::CoordinatorMessage()));
  EXPECT_FALSE(outbox.Push(v1::CoordinatorMessage()));
  EXPECT_EQ(ends, 1);
}

}  // namespace
}  // namespace fsdpd
