// Which checkpoint `submit --from JOB[@STEP]` means: of what a job has committed, its coordinator still knows
// and its directory keeps. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

struct CheckpointChoice {
  std::string job;
  std::optional<int64_t> step;  // Empty: the newest.
};

// "tiny-k3x9q2" or "tiny-k3x9q2@200". INVALID_ARGUMENT says what is wrong.
absl::StatusOr<CheckpointChoice> ParseCheckpointChoice(const std::string& text);

// Whether the job's directory still has its checkpoints(index), as the job's own keep them
// (fsdp/checkpoint/job_directory.h). Of another job's there it may be fewer.
bool IsKept(const v1::Job& job, int index);

// NOT_FOUND says what there is instead.
absl::StatusOr<v1::SavedCheckpoint> Choose(const CheckpointChoice& choice, const v1::Job& job);

}  // namespace fsdpd
