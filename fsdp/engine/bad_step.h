// Policy for bad steps (train.on_nonfinite, train.on_spike), as pure functions. A bad step is one that the
// device did not apply (operations.h). Also attaches the bad step to the error that ends a run, so that the
// process can tell which errors to restart from.
//
// All ranks decide alike: whether a step is bad follows from all-reduced values, and the limits from
// TrainingState, which is equal on all ranks. Thread safety: pure.
#pragma once

#include <absl/status/status.h>

#include <optional>

#include "fsdp/checkpoint/job/training_state.h"
#include "fsdp/plan/spec/spec.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

// Applies the policy to `bad`, which has all fields but `rewind`. Returns OK and counts the step in `state`
// if it is skipped. Returns OUT_OF_RANGE if the run ends with this step: the message is for the user, and
// BadStepOf() extracts the step.
absl::Status TakeBadStep(const Spec& spec, const v1::BadStep& bad, TrainingState* state);

// The bad step that ended a run, even if the error was Annotated(); nullopt for any other error.
std::optional<v1::BadStep> BadStepOf(const absl::Status& status);

// Prepends `prefix` to the message of `status` and keeps its payloads.
absl::Status Annotated(const absl::Status& status, const std::string& prefix);

// Appends the norm of a step to the window of spike detection (nullopt: the step was skipped). Does nothing
// if the spec does not enable spike detection.
void RecordNorm(const Spec& spec, std::optional<float> norm, TrainingState* state);

// Normalizes a value for reports: drops the sign of a NaN, which some platforms would print as "-nan".
double WithoutNanSign(double value);

}  // namespace fsdpd
