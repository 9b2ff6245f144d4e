// One rank of a device measurement: its lanes, communicators and timing.
//
// All ranks measure the same thing at the same time, as in training, since ranks share cores and memory of a
// CPU, and links and power of a node's GPUs. A result is the mean over ranks of each rank's median, and equal
// on all ranks, so decisions that are derived from it agree.
//
// Thread safety: one thread per rank. Errors: those of lanes and communicators.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>

#include "fsdp/comm/connected_mesh.h"
#include "fsdp/lane/lane.h"

namespace fsdpd {

struct RankBench {
  at::Device device = at::kCPU;
  ConnectedMesh mesh;
  std::unique_ptr<Lane> compute;
  std::unique_ptr<Lane> communication;
  int runs = 1;  // The median counts.
  // Called with what is measured next: "matrix products in fp32". Set on one rank, or on none.
  std::function<void(const std::string& what)> on_stage;

  void Begin(const std::string& what) const {
    if (on_stage) on_stage(what);
  }
};

using Work = std::function<absl::Status()>;

// Starts the lanes of a rank on a device.
absl::Status StartLanes(DeviceKind device, int index, RankBench* rank);

// Runs `work` on the lane once and waits for it, for preparation and verification.
absl::Status RunOn(Lane* lane, const Work& work);

// Seconds of one `work` on a lane of this rank, the median of `runs` after a warm-up.
absl::StatusOr<double> OwnMedianSeconds(Lane* lane, const Work& work, int runs);

// Seconds of one `work` on a lane of `rank`, with nothing else running. Collective.
absl::StatusOr<double> MedianSeconds(RankBench* rank, Lane* lane, const Work& work);

struct TimedWork {
  Lane* lane = nullptr;
  Work work;
  double isolated_seconds = 0;  // From MedianSeconds().
};

// Seconds of one `work` while `other` repeats on its own lane, for at least as long. Collective.
absl::StatusOr<double> SecondsWithConcurrent(RankBench* rank, const TimedWork& work, const TimedWork& other);

}  // namespace fsdpd
