#include "fsdp/lane/lane.h"

#include <gtest/gtest.h>

#include <future>

#include "fsdp/lane/testing/lane_suite.h"

namespace fsdpd {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, LaneSuite,
                         testing::Values(LaneKind{"Inline", MakeInlineLane},
                                         LaneKind{"Thread", MakeThreadLane}),
                         NameOf);

TEST(ThreadLane, SubmitDoesNotBlock) {
  auto lane = MakeThreadLane();
  std::promise<void> go;
  std::future<void> gone = go.get_future();
  lane->Submit([&gone] {
    gone.get();
    return absl::OkStatus();
  });
  const LaneEventPtr event = lane->Record();
  go.set_value();  // Reached only because Submit did not wait for the work.
  EXPECT_TRUE(event->Await().ok());
}

TEST(ThreadLane, SubmitBlocksWhileTheQueueIsFull) {
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

TEST(ThreadLane, ShowsProgressDuringWork) {
  std::atomic<uint64_t> word{0};
  auto lane = MakeThreadLane();
  ASSERT_TRUE(lane->ShowProgress(&word).ok());
  std::promise<void> begun, go;
  lane->Progress(1);
  lane->Submit([&] {
    begun.set_value();
    go.get_future().wait();
    return absl::OkStatus();
  });
  lane->Progress(2);
  begun.get_future().wait();
  EXPECT_EQ(word.load(), 1u);
  go.set_value();
  EXPECT_TRUE(lane->Synchronize().ok());
  EXPECT_EQ(word.load(), 2u);
}

TEST(ThreadLane, ReleasesCapturesAfterWork) {
  auto lane = MakeThreadLane();
  auto held = std::make_shared<int>(1);
  lane->Submit([held] { return absl::OkStatus(); });
  lane->Synchronize().IgnoreError();
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace fsdpd
