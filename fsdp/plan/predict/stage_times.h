// The programs of all pipeline stages together in simulated time: each instruction starts when its lane is
// free, what it depends on is done and, of what crosses between stages or goes over all ranks, when all who
// take part have come to it. How communication and compute slow each other down is left out.
//
// Pure and deterministic. REQUIRES: the programs verify, as they do together (verify_stages.h).
#pragma once

#include <vector>

#include "fsdp/plan/predict/lane_times.h"

namespace fsdpd {

struct TimedStage {
  const Program* program = nullptr;
  StagePlace stage;
  std::vector<double> seconds;  // By instruction, alone.
};

// By stage.
std::vector<LaneTimes> RunStages(const std::vector<TimedStage>& stages, int steps);

// Of a step in a steady state, in which each stage's compute lane is busy; by stage.
struct StageBusy {
  double step_seconds = 0;
  std::vector<double> compute_seconds;
};
StageBusy BusyOf(const std::vector<TimedStage>& stages, const std::vector<LaneTimes>& times);

}  // namespace fsdpd
