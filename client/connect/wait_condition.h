// Conditions of `wait --for`. Pure functions.
//
//   state=running[,paused]   the job is in one of these states
//   ended                    succeeded, failed or cancelled
//   step=200                 rank 0 has reported this step or a later one
//   deleted                  the coordinator no longer has the job
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

struct WaitCondition {
  std::vector<v1::JobState> states;  // Empty: any.
  int64_t step = 0;                  // 0: any.
  bool is_deletion = false;
};

enum class WaitVerdict { kNotYet, kMet, kNever };

// Returns INVALID_ARGUMENT with the valid forms for anything else.
absl::StatusOr<WaitCondition> ParseWaitCondition(absl::string_view text);

// kNever: the job ended in another state, or has fewer steps.
WaitVerdict Judge(const WaitCondition& condition, const v1::Job& job);

// Short names of all states, in the order of the proto.
std::vector<std::string> StateNames();

}  // namespace fsdpd
