// Exception boundary for work on one rank. Catch logs an exception with the rank and counts it
// (fsdpd_agent_internal_errors_total), and the agent continues with the other ranks. The caller decides when
// to look at this rank again.
//
// Thread-safe if `count` is thread-safe.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>

#include <functional>

#include "agent/launch/attempt.h"

namespace fsdpd {

class InternalErrors {
 public:
  explicit InternalErrors(std::function<void()> count = nullptr);

  // Runs `step`. INTERNAL with the exception's text if it throws. `id`: rank -1 is the whole attempt.
  absl::Status Catch(const RankId& id, absl::FunctionRef<void()> step) const;

 private:
  std::function<void()> count_;
};

}  // namespace fsdpd
