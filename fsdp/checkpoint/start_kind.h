// What a job can take from a checkpoint that it did not write itself.
//
// Pure, but for reading what lies in the directory. Errors: the reader's.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

enum class StartKind {
  kTraining,  // A native one, of a job: parameters, the optimizer's state, step and place in the data.
  kNative,    // Parameters under our names and no step: what a conversion made.
  kForeign,   // Parameters under others' names: a Hugging Face directory, or DCP (param_source.h).
};

// By names alone. What is nobody's is native, for the restore to say what it lacks.
absl::StatusOr<StartKind> KindOfStart(const std::string& path, const ModelConfig& model);

// Whether training begins at step 1 with the parameters. FAILED_PRECONDITION where the spec asks for more
// than there is.
absl::StatusOr<bool> TakesParametersOnly(const CheckpointConfig& checkpoint, const std::string& path,
                                         StartKind kind);

}  // namespace fsdpd
