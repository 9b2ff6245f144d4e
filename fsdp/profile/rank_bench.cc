#include "fsdp/profile/rank_bench.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

// The first runs select kernels, fill caches, raise clocks and establish lazy connections.
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

}  // namespace

absl::Status StartLanes(DeviceKind device, int index, RankBench* rank) {
  const bool cuda = device == DeviceKind::kCuda;
  if (cuda) {
    FSDPD_RETURN_IF_ERROR(SetCudaDevice(index));
    rank->device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index));
  }
  rank->compute = cuda ? MakeStreamLane(index, /*high_priority=*/false) : MakeThreadLane();
  rank->communication = cuda ? MakeStreamLane(index, /*high_priority=*/true) : MakeThreadLane();
  // The number of threads of a product is read on the thread that runs it.
  return RunOn(rank->compute.get(), [] {
    at::init_num_threads();
    return absl::OkStatus();
  });
}

absl::Status RunOn(Lane* lane, const Work& work) {
  lane->Submit(work);
  return lane->Synchronize();
}

absl::StatusOr<double> OwnMedianSeconds(Lane* lane, const Work& work, int runs) {
  for (int i = 0; i < kWarmUps; ++i) lane->Submit(work);
  std::vector<LaneEventPtr> marks{lane->Record()};
  for (int i = 0; i < runs; ++i) {
    lane->Submit(work);
    marks.push_back(lane->Record());
  }
  FSDPD_RETURN_IF_ERROR(lane->Synchronize());
  std::vector<double> seconds;
  for (size_t i = 1; i < marks.size(); ++i) seconds.push_back(marks[i]->SecondsSince(*marks[i - 1]));
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

absl::StatusOr<double> MedianSeconds(RankBench* rank, Lane* lane, const Work& work) {
  FSDPD_RETURN_IF_ERROR(AwaitRanks(rank));
  FSDPD_ASSIGN_OR_RETURN(const double seconds, OwnMedianSeconds(lane, work, rank->runs));
  return MeanOverRanks(rank, seconds);
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
