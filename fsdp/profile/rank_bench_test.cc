#include "fsdp/profile/rank_bench.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "fsdp/profile/testing/local_benches.h"

namespace fsdpd {
namespace {

Work Counting(std::atomic<int>* runs) {
  return [runs] {
    ++*runs;
    return absl::OkStatus();
  };
}

TEST(RankBench, AllRanksGetSameResult) {
  for (const int ranks : {1, 2, 3}) {
    std::atomic<int> runs{0};
    std::vector<double> seconds(ranks, -1);
    OnLocalBenches(ranks, [&](RankBench* bench) {
      const auto median = MedianSeconds(bench, bench->compute.get(), Counting(&runs));
      ASSERT_TRUE(median.ok()) << median.status();
      seconds[bench->mesh.Find(Group::kShard, Role::kGather)->rank()] = *median;
    });
    EXPECT_GE(runs.load(), 3 * ranks);
    EXPECT_GE(seconds[0], 0);
    for (const double of_rank : seconds) EXPECT_EQ(of_rank, seconds[0]);
  }
}

TEST(RankBench, OtherWorkOutlastsMeasuredWork) {
  std::atomic<int> measured{0}, beside{0};
  OnLocalBenches(1, [&](RankBench* bench) {
    const TimedWork work{bench->compute.get(), Counting(&measured), 1.0};
    const TimedWork other{bench->communication.get(), Counting(&beside), 0.5};
    ASSERT_TRUE(SecondsWithConcurrent(bench, work, other).ok());
  });
  EXPECT_EQ(measured.load(), 3);
  EXPECT_GE(beside.load(), 2 * 3) << "half as long, so twice as many at least";
}

TEST(RankBench, ReturnsErrorOfWork) {
  OnLocalBenches(1, [&](RankBench* bench) {
    const auto failing = [] { return absl::ResourceExhaustedError("full"); };
    EXPECT_TRUE(absl::IsResourceExhausted(MedianSeconds(bench, bench->compute.get(), failing).status()));
  });
}

}  // namespace
}  // namespace fsdpd
