// Resolution of `submit --from JOB[@STEP]` to a checkpoint that the job committed, that its coordinator still
// lists, and that keep_last has not deleted. Pure functions.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

struct CheckpointChoice {
  std::string job;
  std::optional<int64_t> step;  // Empty: the newest checkpoint.
};

// Parses "tiny-k3x9q2" or "tiny-k3x9q2@200". Returns INVALID_ARGUMENT for anything else.
absl::StatusOr<CheckpointChoice> ParseCheckpointChoice(const std::string& text);

// Whether job.checkpoints(index) survives the job's own keep_last (fsdp/checkpoint/job/job_directory.h). This
// is an upper bound if other jobs write to the same directory, because their keep_last deletes checkpoints
// too.
bool IsRetained(const v1::Job& job, int index);

// Returns NOT_FOUND with the steps that are available if the job has no such checkpoint.
absl::StatusOr<v1::SavedCheckpoint> ResolveCheckpoint(const CheckpointChoice& choice, const v1::Job& job);

}  // namespace fsdpd
