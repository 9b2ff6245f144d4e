// Execution order of a rank's units: one row per Forward, Backward or ForwardBackward of a unit on a
// micro-batch. The compiler turns any such table into a program; each pipeline stage has its own.
#pragma once

#include <vector>

#include "fsdp/plan/program/operation.h"

namespace fsdpd {

struct Pass {
  int unit = 0;
  int micro_batch = 0;
  Op op = Op::kForward;
};

using Schedule = std::vector<Pass>;

// Direction of a turn: a micro-batch's forward or backward through one run of a stage, or its deferred weight
// gradients.
enum class Leg { kForward, kBackward, kWeights };

struct Turn {
  int run = 0;
  int micro_batch = 0;
  Leg leg = Leg::kForward;
};

// The order of turns. With one stage, each micro-batch runs forward and backward before the next one starts.
// With several stages: 1F1B. A stage starts with one forward per stage behind it, then alternates one forward
// with the backward of the oldest micro-batch. With several runs per stage (interleaved 1F1B), a group of
// micro-batches, as many as stages, goes through one run and then the next, and backward from the last run to
// the first; the warmup has enough forwards for the last stage to start its last run. With zero-bubble
// (ZB-H1), stage s computes deferred weight gradients s micro-batches later. REQUIRES, with several runs: the
// number of micro-batches is a multiple of the stages.
std::vector<Turn> TrainingTurns(int micro_batches, const StagePlace& stage);

// The units of the stage, turn by turn. The last unit of the model runs forward and backward together.
Schedule TrainingSchedule(int units, int micro_batches, const StagePlace& stage = {});

// Forward of one micro-batch through all units.
Schedule EvaluationSchedule(int units);

}  // namespace fsdpd
