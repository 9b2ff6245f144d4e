#include "fsdp/comm/lane.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

namespace fsdpd {
namespace {

struct LaneKind {
  std::string name;
  std::function<std::unique_ptr<Lane>()> make;
};

class LaneTest : public testing::TestWithParam<LaneKind> {};

TEST_P(LaneTest, RunsWorkInTheOrderItWasSubmitted) {
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

TEST_P(LaneTest, WorkStartsAfterTheMarkOfAnotherLane) {
  auto first = MakeThreadLane();
  auto second = GetParam().make();
  int value = 0;  // Not atomic: the mark alone orders the two lanes, and TSan checks that it does.
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

TEST_P(LaneTest, FirstErrorStaysAndLaterWorkIsSkipped) {
  auto lane = GetParam().make();
  const MarkPtr before = lane->Record();
  lane->Submit([] { return absl::UnavailableError("first"); });
  bool ran = false;
  lane->Submit([&ran] {
    ran = true;
    return absl::InternalError("second");
  });
  const MarkPtr after = lane->Record();
  EXPECT_TRUE(before->Await().ok());
  EXPECT_EQ(after->Await(), absl::UnavailableError("first"));
  EXPECT_EQ(lane->Synchronize(), absl::UnavailableError("first"));
  EXPECT_FALSE(ran);
}

TEST_P(LaneTest, ErrorReachesEveryLaneThatWaitsForALaterMark) {
  auto failing = GetParam().make();
  auto thread = MakeThreadLane();
  auto inline_lane = MakeInlineLane();
  const MarkPtr before = failing->Record();
  failing->Submit([] { return absl::UnavailableError("gone"); });
  const MarkPtr after = failing->Record();
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

TEST_P(LaneTest, TurnsAnExceptionIntoTheLanesError) {
  auto lane = GetParam().make();
  lane->Submit([]() -> absl::Status { throw std::runtime_error("shape"); });
  EXPECT_EQ(lane->Synchronize(), absl::InternalError("shape"));
}

TEST_P(LaneTest, TimesOfMarksGrowWithTheLane) {
  auto lane = GetParam().make();
  std::vector<MarkPtr> marks;
  for (int i = 0; i < 100; ++i) {
    marks.push_back(lane->Record());
    lane->Submit([] { return absl::OkStatus(); });
  }
  ASSERT_TRUE(lane->Synchronize().ok());
  for (size_t i = 1; i < marks.size(); ++i) EXPECT_GE(marks[i]->SecondsSince(*marks[i - 1]), 0);
  EXPECT_EQ(marks[0]->SecondsSince(*marks[0]), 0);
  EXPECT_GT(marks.back()->SecondsSince(*marks.front()), 0);
}

TEST_P(LaneTest, FinishesItsWorkBeforeItIsDestroyedAndItsMarksStayGood) {
  auto lane = GetParam().make();
  int runs = 0;
  for (int i = 0; i < 100; ++i) {
    lane->Submit([&runs] {
      ++runs;
      return absl::OkStatus();
    });
  }
  const MarkPtr mark = lane->Record();
  lane.reset();
  EXPECT_EQ(runs, 100);
  EXPECT_TRUE(mark->Await().ok());
}

INSTANTIATE_TEST_SUITE_P(All, LaneTest,
                         testing::Values(LaneKind{"Inline", MakeInlineLane},
                                         LaneKind{"Thread", MakeThreadLane}),
                         [](const auto& info) { return info.param.name; });

TEST(ThreadLane, RunsBesideTheThreadThatSubmits) {
  auto lane = MakeThreadLane();
  std::promise<void> go;
  std::future<void> gone = go.get_future();
  lane->Submit([&gone] {
    gone.get();
    return absl::OkStatus();
  });
  const MarkPtr mark = lane->Record();
  go.set_value();  // Reached only because Submit did not wait for the work.
  EXPECT_TRUE(mark->Await().ok());
}

TEST(ThreadLane, SubmitWaitsWhenTheQueueIsFullAndGoesOnWhenItDrains) {
  auto lane = MakeThreadLane();
  int64_t runs = 0;
  constexpr int64_t kMoreThanTheQueueHolds = 200000;
  for (int64_t i = 0; i < kMoreThanTheQueueHolds; ++i) {
    lane->Submit([&runs] {
      ++runs;
      return absl::OkStatus();
    });
  }
  EXPECT_TRUE(lane->Synchronize().ok());
  EXPECT_EQ(runs, kMoreThanTheQueueHolds);
}

TEST(ThreadLane, ReleasesWhatWorkCapturedWhenTheWorkIsDone) {
  auto lane = MakeThreadLane();
  auto held = std::make_shared<int>(1);
  lane->Submit([held] { return absl::OkStatus(); });
  lane->Synchronize().IgnoreError();
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace fsdpd
