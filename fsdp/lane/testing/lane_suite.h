// Requirements on every lane, as a parameterized test suite. The test of a lane type instantiates it:
//   INSTANTIATE_TEST_SUITE_P(Cpu, LaneSuite, testing::Values(LaneKind{"Inline", MakeInlineLane}), NameOf);
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "fsdp/lane/lane.h"

namespace fsdpd {

struct LaneKind {
  std::string name;
  std::function<std::unique_ptr<Lane>()> make;
  std::function<bool()> available = [] { return true; };
};

inline std::string NameOf(const testing::TestParamInfo<LaneKind>& info) { return info.param.name; }

class LaneSuite : public testing::TestWithParam<LaneKind> {
 protected:
  void SetUp() override {
    if (!GetParam().available()) GTEST_SKIP() << "no device for a lane of kind " << GetParam().name;
  }
};

TEST_P(LaneSuite, RunsWorkInOrder) {
  auto lane = GetParam().make();
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) {
    lane->Submit([&order, i] {
      order.push_back(i);
      return absl::OkStatus();
    });
  }
  ASSERT_TRUE(lane->Synchronize().ok());
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

TEST_P(LaneSuite, WaitsForAnotherLane) {
  auto first = MakeThreadLane();
  auto second = GetParam().make();
  int value = 0;  // Not atomic: only the event orders the lanes; TSan checks it.
  for (int round = 0; round < 200; ++round) {
    first->Submit([&value] {
      ++value;
      return absl::OkStatus();
    });
    second->Wait(first->Record());
    second->Submit([&value, round] {
      EXPECT_EQ(value, 2 * round + 1);
      ++value;
      return absl::OkStatus();
    });
    first->Wait(second->Record());
  }
  EXPECT_TRUE(first->Synchronize().ok());
  EXPECT_TRUE(second->Synchronize().ok());
  EXPECT_EQ(value, 400);
}

TEST_P(LaneSuite, FirstErrorIsSticky) {
  auto lane = GetParam().make();
  const LaneEventPtr before = lane->Record();
  lane->Submit([] { return absl::UnavailableError("first"); });
  bool ran = false;
  lane->Submit([&ran] {
    ran = true;
    return absl::InternalError("second");
  });
  const LaneEventPtr after = lane->Record();
  EXPECT_TRUE(before->Await().ok());
  EXPECT_EQ(after->Await(), absl::UnavailableError("first"));
  EXPECT_EQ(lane->Synchronize(), absl::UnavailableError("first"));
  EXPECT_FALSE(ran);
}

TEST_P(LaneSuite, WaitingLanesGetTheError) {
  auto failing = GetParam().make();
  auto thread = MakeThreadLane();
  auto inline_lane = MakeInlineLane();
  const LaneEventPtr before = failing->Record();
  failing->Submit([] { return absl::UnavailableError("gone"); });
  const LaneEventPtr after = failing->Record();
  thread->Wait(before);
  EXPECT_TRUE(thread->Synchronize().ok());
  thread->Wait(after);
  inline_lane->Wait(thread->Record());
  bool ran = false;
  inline_lane->Submit([&ran] {
    ran = true;
    return absl::OkStatus();
  });
  EXPECT_FALSE(ran);
  EXPECT_EQ(thread->Synchronize(), absl::UnavailableError("gone"));
  EXPECT_EQ(inline_lane->Synchronize(), absl::UnavailableError("gone"));
}

TEST_P(LaneSuite, ConvertsExceptionsToErrors) {
  auto lane = GetParam().make();
  lane->Submit([]() -> absl::Status { throw std::runtime_error("shape"); });
  EXPECT_EQ(lane->Synchronize(), absl::InternalError("shape"));
}

TEST_P(LaneSuite, EventTimesIncrease) {
  auto lane = GetParam().make();
  std::vector<LaneEventPtr> events;
  for (int i = 0; i < 100; ++i) {
    events.push_back(lane->Record());
    lane->Submit([] { return absl::OkStatus(); });
  }
  ASSERT_TRUE(lane->Synchronize().ok());
  for (size_t i = 1; i < events.size(); ++i) EXPECT_GE(events[i]->SecondsSince(*events[i - 1]), 0);
  EXPECT_EQ(events[0]->SecondsSince(*events[0]), 0);
  EXPECT_GT(events.back()->SecondsSince(*events.front()), 0);
}

// As in a rank's flight recorder: each lane's word has its own memory.
struct alignas(Lane::kProgressBytes) ProgressWord {
  std::atomic<uint64_t> value{0};
  std::array<std::byte, Lane::kProgressBytes - sizeof(uint64_t)> rest;
};

TEST_P(LaneSuite, ProgressIsInLaneOrder) {
  const auto word = std::make_unique<ProgressWord>();
  auto lane = GetParam().make();
  lane->Progress(1);  // Not shown yet.
  ASSERT_TRUE(lane->ShowProgress(&word->value).ok());
  for (uint64_t i = 2; i < 200; i += 2) {
    lane->Progress(i);
    ASSERT_TRUE(lane->Synchronize().ok());
    lane->Submit([&word, i] {
      EXPECT_EQ(word->value.load(), i);
      return absl::OkStatus();
    });
    lane->Progress(i + 1);
    ASSERT_TRUE(lane->Synchronize().ok());
    EXPECT_EQ(word->value.load(), i + 1);
  }
  ASSERT_TRUE(lane->ShowProgress(nullptr).ok());
  lane->Progress(1000);
  ASSERT_TRUE(lane->Synchronize().ok());
  EXPECT_EQ(word->value.load(), 199u);
}

TEST_P(LaneSuite, ProgressFollowsWait) {
  const auto word = std::make_unique<ProgressWord>();
  auto other = MakeThreadLane();
  auto lane = GetParam().make();
  ASSERT_TRUE(lane->ShowProgress(&word->value).ok());
  for (uint64_t i = 1; i <= 200; ++i) {
    other->Submit([&word, i] {
      EXPECT_EQ(word->value.load(), i - 1);
      return absl::OkStatus();
    });
    lane->Wait(other->Record());
    lane->Progress(i);
    other->Wait(lane->Record());
  }
  EXPECT_TRUE(other->Synchronize().ok());
  EXPECT_TRUE(lane->Synchronize().ok());
}

TEST_P(LaneSuite, ProgressStopsAtTheError) {
  const auto word = std::make_unique<ProgressWord>();
  auto lane = GetParam().make();
  ASSERT_TRUE(lane->ShowProgress(&word->value).ok());
  lane->Progress(1);
  lane->Submit([] { return absl::UnavailableError("gone"); });
  lane->Progress(2);
  EXPECT_EQ(lane->Synchronize(), absl::UnavailableError("gone"));
  EXPECT_EQ(word->value.load(), 1u);
}

TEST_P(LaneSuite, EventsOutliveTheLane) {
  auto lane = GetParam().make();
  int runs = 0;
  for (int i = 0; i < 100; ++i) {
    lane->Submit([&runs] {
      ++runs;
      return absl::OkStatus();
    });
  }
  const LaneEventPtr event = lane->Record();
  lane.reset();
  EXPECT_EQ(runs, 100);
  EXPECT_TRUE(event->Await().ok());
}

}  // namespace fsdpd
