// What `wait --for` waits for, and whether a job is there yet.
//
//   state=running[,paused]   in one of these
//   ended                    succeeded, failed or cancelled
//   step=200                 rank 0 has reported that step, or a later one
//   deleted                  it is forgotten
//
// Pure.
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

// INVALID_ARGUMENT says what is taken.
absl::StatusOr<WaitCondition> ParseWaitCondition(absl::string_view text);

// kNever: it has ended otherwise, or makes fewer steps.
WaitVerdict Judge(const WaitCondition& condition, const v1::Job& job);

// The short names of all states, in the order of the proto.
std::vector<std::string> StateNames();

}  // namespace fsdpd
