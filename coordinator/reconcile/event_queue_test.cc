#include "coordinator/reconcile/event_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace fsdpd {
namespace {

TEST(EventQueue, ReturnsEventsInOrder) {
  EventQueue queue(8);
  std::vector<int> ran;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue.Push([&ran, i] { ran.push_back(i); }));
  for (const auto& event : queue.Take(absl::ZeroDuration())) event();
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(queue.Take(absl::ZeroDuration()).empty());
}

TEST(EventQueue, PushBlocksWhileFullAndLosesNothing) {
  EventQueue queue(4);
  std::thread pusher([&] {
    for (int i = 0; i < 1000; ++i) EXPECT_TRUE(queue.Push([] {}));
  });
  size_t taken = 0;
  while (taken < 1000) {
    const auto events = queue.Take(absl::InfiniteDuration());
    EXPECT_LE(events.size(), 4u);
    taken += events.size();
  }
  pusher.join();
  EXPECT_EQ(taken, 1000u);
}

TEST(EventQueue, TakesUnhurriedEventsWithOthers) {
  EventQueue queue(8);
  std::vector<int> ran;
  ASSERT_TRUE(queue.PushLowPriority([&ran] { ran.push_back(0); }));
  std::thread pusher([&] { EXPECT_TRUE(queue.Push([&ran] { ran.push_back(1); })); });
  const auto events = queue.Take(absl::Minutes(1));
  pusher.join();
  for (const auto& event : events) event();
  EXPECT_EQ(ran, (std::vector<int>{0, 1}));
  ASSERT_TRUE(queue.PushLowPriority([] {}));
  EXPECT_EQ(queue.Take(absl::ZeroDuration()).size(), 1u) << "at the timeout";
}

TEST(EventQueue, TakesUnhurriedEventsBeforeTheQueueIsFull) {
  EventQueue queue(8);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(queue.PushLowPriority([] {}));
  EXPECT_EQ(queue.Take(absl::Minutes(1)).size(), 5u);
}

TEST(EventQueue, CloseReleasesBlockedPushAndTake) {
  EventQueue full(1);
  ASSERT_TRUE(full.Push([] {}));
  std::thread pusher([&] { EXPECT_FALSE(full.Push([] {})); });
  full.Close();
  pusher.join();
  EventQueue empty(1);
  std::thread taker([&] { EXPECT_TRUE(empty.Take(absl::InfiniteDuration()).empty()); });
  empty.Close();
  taker.join();
}

TEST(EventQueue, CloseDropsPendingEventsAndNotifiesWaiters) {
  EventQueue queue(4);
  auto owned = std::make_shared<int>(0);
  const std::weak_ptr<int> seen = owned;
  ASSERT_TRUE(queue.Push([owned = std::move(owned)] {}));
  ASSERT_FALSE(seen.expired());
  queue.Close();
  EXPECT_TRUE(seen.expired());
  EXPECT_TRUE(queue.Take(absl::Seconds(1)).empty());
}

TEST(EventQueue, AskReturnsTheAnswerOrClosed) {
  auto queue = std::make_unique<EventQueue>(4);
  const auto ask = [&queue] {
    return queue->Call<int>([](const std::function<void(int)>& answer) { answer(7); }, -1);
  };
  const auto next = [&queue] {
    std::deque<EventQueue::Event> events;
    while (events.empty()) events = queue->Take(absl::Seconds(1));
    return events;
  };
  auto answered = std::async(std::launch::async, ask);
  for (const EventQueue::Event& event : next()) event();
  EXPECT_EQ(answered.get(), 7);
  auto dropped = std::async(std::launch::async, ask);
  next();  // It is never run.
  EXPECT_EQ(dropped.get(), -1);
  queue->Close();
  EXPECT_EQ(ask(), -1);
}

}  // namespace
}  // namespace fsdpd
