// Preemption decision: which jobs save a checkpoint and leave for a waiting job. There are two kinds of
// candidates:
//
//   * A preemptible job (SubmitJobRequest.preemptible) of lower priority that can save its progress now.
//     Equal priorities never preempt each other, so two jobs cannot take each other's slots in turn.
//   * A job that was backfilled on slots that the waiting job reserves (reservations.h), whatever its
//     priority.
//
// Jobs are preempted only if the waiting job can then be placed next to the reservations of the jobs ahead of
// it. As few as possible leave: the lowest priority first, then the most recently launched. Jobs that are
// already leaving, and running preflights (preflight_runner.h), are awaited before others are preempted.
//
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/schedule/placer.h"
#include "coordinator/schedule/reservations.h"

namespace fsdpd {

// A holder of slots: a job, or a preflight if `job` is "".
struct Occupant {
  std::string job;
  int64_t priority = 0;
  int64_t start_unix_nanos = 0;
  bool leaves = false;     // Its slots become free without preemption.
  bool may_leave = false;  // It is preemptible and can save now.
  // It was backfilled on slots that the waiting job reserves, and leaves whatever its priority.
  bool backfilled = false;
  std::map<std::string, std::vector<int>> devices;  // By node.
};

struct Victims {
  bool suffices =
      false;  // The waiting job can be placed after `leave` and the jobs already leaving have left.
  std::vector<std::string> leave;  // Jobs to preempt.
};

// REQUIRES: `request` cannot be placed on `nodes` next to the reservations `ahead`.
Victims ChooseVictims(const PlaceRequest& request, int64_t priority, const std::vector<NodeSlots>& nodes,
                      const Reservations& ahead, const std::vector<Occupant>& occupants);

}  // namespace fsdpd
