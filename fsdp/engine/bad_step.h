// What becomes of a step that the device did not apply (operations.h): the policy of train.on_nonfinite and
// train.on_spike as pure functions, and how an error says which step it was, so that a process can tell those
// that start it again.
//
// Which step is bad follows from sums that all ranks share, and the bounds from the state that they share, so
// all ranks come to the same end at the same step. Thread safety: pure.
#pragma once

#include <absl/status/status.h>

#include <optional>

#include "fsdp/checkpoint/training_state.h"
#include "fsdp/plan/spec/spec.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

// `bad`: all but `rewind`. OK where the step is skipped; it is counted in `state` then. OUT_OF_RANGE where
// the run ends with it, in words for the person whose job it is, and with the step for BadStepOf().
absl::Status TakeBadStep(const Spec& spec, const v1::BadStep& bad, TrainingState* state);

// The step that a run ended by, though the error went through Annotated(). None of any other error.
std::optional<v1::BadStep> BadStepOf(const absl::Status& status);

// The same error with `prefix` before its words.
absl::Status Annotated(const absl::Status& status, const std::string& prefix);

// Takes the step's norm into the window; none of a step that was skipped. Nothing where spikes are not looked
// for.
void KeepNorm(const Spec& spec, std::optional<float> norm, TrainingState* state);

// As it is told: a NaN without the sign that some machines give it, which people would read as "-nan".
double Told(double value);

}  // namespace fsdpd
