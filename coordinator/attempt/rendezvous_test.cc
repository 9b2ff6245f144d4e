#include "coordinator/attempt/rendezvous.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/limits.h"

namespace fsdpd {
namespace {

const AttemptRef kFirst = {"job", 1};
const AttemptRef kSecond = {"job", 2};

Rendezvous::Waiter Into(std::vector<std::string>* got) {
  return [got](const std::string& value) { got->push_back(value); };
}

TEST(Rendezvous, AnswersImmediatelyIfKeyIsSet) {
  Rendezvous rendezvous;
  rendezvous.Open(kFirst);
  ASSERT_TRUE(rendezvous.Set(kFirst, "k", "v").ok());
  std::vector<std::string> got;
  ASSERT_TRUE(rendezvous.Get(kFirst, "k", 1, Into(&got)).ok());
  EXPECT_EQ(got, std::vector<std::string>{"v"});
}

TEST(Rendezvous, AnswersEveryWaiterOnceWhenKeyIsSet) {
  Rendezvous rendezvous;
  rendezvous.Open(kFirst);
  std::vector<std::string> got;
  for (int owner = 0; owner < 3; ++owner) ASSERT_TRUE(rendezvous.Get(kFirst, "k", owner, Into(&got)).ok());
  EXPECT_TRUE(got.empty());
  ASSERT_TRUE(rendezvous.Set(kFirst, "k", "v").ok());
  ASSERT_TRUE(rendezvous.Set(kFirst, "k", "v").ok());
  EXPECT_EQ(got, std::vector<std::string>(3, "v"));
}

TEST(Rendezvous, EmptyValueIsAValue) {
  Rendezvous rendezvous;
  rendezvous.Open(kFirst);
  ASSERT_TRUE(rendezvous.Set(kFirst, "k", "").ok());
  std::vector<std::string> got;
  ASSERT_TRUE(rendezvous.Get(kFirst, "k", 1, Into(&got)).ok());
  EXPECT_EQ(got.size(), 1u);
}

TEST(Rendezvous, RejectsSecondValueForKey) {
  Rendezvous rendezvous;
  rendezvous.Open(kFirst);
  ASSERT_TRUE(rendezvous.Set(kFirst, "k", "v").ok());
  EXPECT_EQ(rendezvous.Set(kFirst, "k", "w").code(), absl::StatusCode::kAlreadyExists);
}

TEST(Rendezvous, SeparatesKeysOfAttempts) {
  Rendezvous rendezvous;
  rendezvous.Open(kFirst);
  rendezvous.Open(kSecond);
  ASSERT_TRUE(rendezvous.Set(kFirst, "k", "old").ok());
  std::vector<std::string> got;
  ASSERT_TRUE(rendezvous.Get(kSecond, "k", 1, Into(&got)).ok());
  EXPECT_TRUE(got.empty());
  ASSERT_TRUE(rendezvous.Set(kSecond, "k", "new").ok());
  EXPECT_EQ(got, std::vector<std::string>{"new"});
}

TEST(Rendezvous, ClosedAttemptIsRejectedAndItsWaitersDropped) {
  Rendezvous rendezvous;
  rendezvous.Open(kFirst);
  std::vector<std::string> got;
  ASSERT_TRUE(rendezvous.Get(kFirst, "k", 1, Into(&got)).ok());
  rendezvous.Close(kFirst);
  EXPECT_EQ(rendezvous.Set(kFirst, "k", "v").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rendezvous.Get(kFirst, "k", 1, Into(&got)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(got.empty());
}

TEST(Rendezvous, ForgetsWaitersOfOneStreamOnly) {
  Rendezvous rendezvous;
  rendezvous.Open(kFirst);
  std::vector<std::string> old_stream, new_stream;
  ASSERT_TRUE(rendezvous.Get(kFirst, "k", 1, Into(&old_stream)).ok());
  ASSERT_TRUE(rendezvous.Get(kFirst, "k", 2, Into(&new_stream)).ok());
  rendezvous.Forget(1);
  ASSERT_TRUE(rendezvous.Set(kFirst, "k", "v").ok());
  EXPECT_TRUE(old_stream.empty());
  EXPECT_EQ(new_stream.size(), 1u);
}

TEST(Rendezvous, BoundsKeysAndValues) {
  Rendezvous rendezvous;
  rendezvous.Open(kFirst);
  EXPECT_EQ(rendezvous.Set(kFirst, "k", std::string(kMaxRendezvousValueBytes + 1, 'x')).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(rendezvous.Set(kFirst, "k", std::string(kMaxRendezvousValueBytes, 'x')).ok());
  EXPECT_EQ(rendezvous.Set(kFirst, "", "v").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rendezvous.Set(kFirst, std::string(5000, 'k'), "v").code(), absl::StatusCode::kInvalidArgument);
}

TEST(Rendezvous, BoundsAttemptTotal) {
  constexpr size_t kBytes = 10'000;
  Rendezvous rendezvous(kBytes);
  rendezvous.Open(kFirst);
  size_t kept = 0;
  absl::Status full;
  for (int i = 0; full.ok(); ++i) {
    full = rendezvous.Set(kFirst, std::to_string(i), std::string(100, 'x'));
    kept += full.ok() ? 100 : 0;
  }
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(kept, kBytes / 4);
  EXPECT_LE(kept, kBytes);
  EXPECT_TRUE(rendezvous.Set(kFirst, "0", std::string(100, 'x')).ok());  // A repeat costs nothing.
  EXPECT_FALSE(rendezvous.Get(kFirst, "more", 1, [](const std::string&) {}).ok());
}

TEST(Rendezvous, WaitersCountUntilAnsweredOrForgotten) {
  Rendezvous rendezvous(10'000);
  rendezvous.Open(kFirst);
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(rendezvous.Get(kFirst, "k", round, [](const std::string&) {}).ok());
    }
    rendezvous.Forget(round);
  }
}

TEST(Rendezvous, ConcurrentSettersAndGettersLoseNoAnswer) {
  Rendezvous rendezvous;
  rendezvous.Open(kFirst);
  constexpr int kKeys = 500;
  std::atomic<int> answers{0};
  std::thread getter([&] {
    for (int i = 0; i < kKeys; ++i) {
      EXPECT_TRUE(rendezvous.Get(kFirst, std::to_string(i), 1, [&](const std::string&) { ++answers; }).ok());
    }
  });
  for (int i = 0; i < kKeys; ++i) EXPECT_TRUE(rendezvous.Set(kFirst, std::to_string(i), "v").ok());
  getter.join();
  EXPECT_EQ(answers, kKeys);
}

}  // namespace
}  // namespace fsdpd
