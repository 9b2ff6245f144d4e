// In which order a rank's units run: one row for each Forward, Backward or ForwardBackward of a unit on a
// micro-batch. The compiler makes a program of any such table; ranks of different pipeline stages have
// different ones.
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

// A micro-batch forward through one of the stage's runs of units, back, or through what that put off.
enum class Leg { kForward, kBackward, kWeights };

struct Turn {
  int run = 0;
  int micro_batch = 0;
  Leg leg = Leg::kForward;
};

// Where there is one stage, each micro-batch goes forward and back before the next one starts. Of more
// stages, 1F1B: each begins with a forward for every stage behind it, and goes on with a forward and the
// backward of the oldest that is left. Stages with several runs (interleaved) take as many micro-batches as
// there are stages through one of them and then through the next, and back from the last to the first; they
// begin with as many forwards as let the last stage begin with its last run. Stages that put off gradients of
// matrices (ZB-H1) compute them behind the backward of a later micro-batch: the s-th stage of the s-th later.
// REQUIRES, where there are several runs: micro-batches are a multiple of the stages.
std::vector<Turn> TrainingTurns(int micro_batches, const StagePlace& stage);

// Of the stage's units, by turns; the last unit of all goes forward and back at once.
Schedule TrainingSchedule(int units, int micro_batches, const StagePlace& stage = {});

// One micro-batch forward, through each run.
Schedule EvaluationSchedule(int units);

}  // namespace fsdpd
