#include "fsdp/profile/rank_bench.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"

namespace fsdpd {
namespace {

// The first runs select kernels, fill caches and raise clocks.
constexpr int kWarmUps = 3;

// `other` outlasts the measured work even if that becomes this much slower,
constexpr double kLongest = 3;
// unless that takes more runs than fit into the queue of a CUDA stream.
constexpr int kMostFillers = 800;

absl::Status AwaitRanks(RankBench* rank) {
  return RunOn(rank->communication.get(), [rank] { return rank->mesh.all()->Barrier(); });
}

absl::StatusOr<double> MeanOverRanks(RankBench* rank, double seconds) {
  at::Tensor sum;
  FSDPD_RETURN_IF_ERROR(RunOn(rank->communication.get(), [&] {
    sum = at::full({1}, seconds, at::TensorOptions().dtype(at::kFloat).device(rank->device));
    return rank->mesh.all()->AllReduce(sum.mutable_data_ptr<float>(), 1);
  }));
  return sum.item<float>() / rank->mesh.all()->size();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

absl::Status RunOn(Lane* lane, const Work& work) {
  lane->Submit(work);
  return lane->Synchronize();
}

absl::StatusOr<double> MedianSeconds(RankBench* rank, Lane* lane, const Work& work) {
  FSDPD_RETURN_IF_ERROR(AwaitRanks(rank));
  for (int i = 0; i < kWarmUps; ++i) lane->Submit(work);
  std::vector<LaneEventPtr> marks{lane->Record()};
  for (int i = 0; i < rank->runs; ++i) {
    lane->Submit(work);
    marks.push_back(lane->Record());
  }
  FSDPD_RETURN_IF_ERROR(lane->Synchronize());
  std::vector<double> seconds;
  for (size_t i = 1; i < marks.size(); ++i) seconds.push_back(marks[i]->SecondsSince(*marks[i - 1]));
  return MeanOverRanks(rank, Median(std::move(seconds)));
}

absl::StatusOr<double> SecondsWithConcurrent(RankBench* rank, const TimedWork& work, const TimedWork& other) {
  FSDPD_CHECK(work.lane != other.lane && work.isolated_seconds > 0 && other.isolated_seconds > 0);
  const double longest = kLongest * rank->runs * work.isolated_seconds;
  const int fillers =
      static_cast<int>(std::min(std::ceil(longest / other.isolated_seconds), 1.0 * kMostFillers));
  FSDPD_RETURN_IF_ERROR(AwaitRanks(rank));
  for (int i = 0; i < fillers; ++i) other.lane->Submit(other.work);
  const LaneEventPtr start = work.lane->Record();
  for (int i = 0; i < rank->runs; ++i) work.lane->Submit(work.work);
  const LaneEventPtr end = work.lane->Record();
  FSDPD_RETURN_IF_ERROR(work.lane->Synchronize());
  FSDPD_RETURN_IF_ERROR(other.lane->Synchronize());
  return MeanOverRanks(rank, end->SecondsSince(*start) / rank->runs);
}

}  // namespace fsdpd
