// Kind of start: the state that a job can restore from a checkpoint that it did not write itself.
//
// Pure, except for reading the directory. Errors: the reader's.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

enum class StartKind {
  kTraining,  // A job's native checkpoint: parameters, optimizer state, step, data position.
  kNative,    // Parameters under our names, without a step: the result of a conversion.
  kForeign,   // Parameters under other names: a Hugging Face directory, or DCP (param_source.h).
};

// Decided by names only. An unrecognized checkpoint is kNative, so that the restore reports what is missing.
absl::StatusOr<StartKind> KindOfStart(const std::string& path, const ModelConfig& model);

// Whether training starts at step 1 with only the parameters. FAILED_PRECONDITION if the spec requires more
// than the checkpoint has.
absl::StatusOr<bool> TakesParametersOnly(const CheckpointConfig& checkpoint, const std::string& path,
                                         StartKind kind);

}  // namespace fsdpd
