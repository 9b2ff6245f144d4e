// Discrete-event simulation of all pipeline stages: an instruction starts when its lane is free, its
// dependencies are done and, for transfers between stages and collectives over all ranks, all participants
// have reached it. Mutual slowdown of compute and communication is not modeled.
//
// Pure and deterministic. REQUIRES: each program verifies, and so do all together (verify_stages.h).
#pragma once

#include <vector>

#include "fsdp/plan/predict/lane_times.h"

namespace fsdpd {

struct TimedStage {
  const Program* program = nullptr;
  StagePlace stage;
  std::vector<double> seconds;  // By instruction, without contention.
};

// By stage.
std::vector<LaneTimes> RunStages(const std::vector<TimedStage>& stages, int steps);

// A step in steady state: its duration, and the busy time of each stage's compute lane.
struct StageBusy {
  double step_seconds = 0;
  std::vector<double> compute_seconds;
};
StageBusy BusyOf(const std::vector<TimedStage>& stages, const std::vector<LaneTimes>& times);

}  // namespace fsdpd
