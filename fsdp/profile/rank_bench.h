// One of the ranks that a device is profiled with: what it computes and communicates on, and a stopwatch.
//
// All ranks measure the same thing at the same moment, as in training: on a CPU they share cores and memory,
// and a node's GPUs share links and power. A result is the mean over ranks of each rank's median, and the
// same number on every rank, so counts that are derived from it agree.
//
// Thread safety: one thread per rank. Errors: the lanes' and the communicators'.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>

#include "fsdp/comm/mesh.h"
#include "fsdp/lane/lane.h"

namespace fsdpd {

struct RankBench {
  at::Device device = at::kCPU;
  ConnectedMesh mesh;
  std::unique_ptr<Lane> compute;
  std::unique_ptr<Lane> communication;
  int runs = 1;  // Of which the median counts.
  // Told what is measured from now on: "matrix products in fp32". On one rank, or on none.
  std::function<void(const std::string& what)> on_stage;

  void Begin(const std::string& what) const {
    if (on_stage) on_stage(what);
  }
};

using Work = std::function<absl::Status()>;

// Runs `work` on the lane once and waits for it: for what prepares and what verifies.
absl::Status RunOn(Lane* lane, const Work& work);

// Seconds of one `work` on a lane of `rank`, with nothing beside it. Collective.
absl::StatusOr<double> MedianSeconds(RankBench* rank, Lane* lane, const Work& work);

struct TimedWork {
  Lane* lane = nullptr;
  Work work;
  double seconds_alone = 0;  // As MedianSeconds() says.
};

// Seconds of one `work` while `other` runs again and again on its own lane, at least as long. Collective.
absl::StatusOr<double> SecondsBeside(RankBench* rank, const TimedWork& work, const TimedWork& other);

}  // namespace fsdpd
