// Slot reservations and backfill: which slots a job may take while jobs ahead of it in the queue wait,
// without delaying them.
//
// A waiting job reserves free slots on each node that could take its ranks when idle, as many as it has ranks
// there. Only the job itself and those ahead of it may use these. Slots that become free there later are
// reserved too, so the job starts as early as if no job had passed it. A job that fits next to all
// reservations is placed: on nodes that the others cannot use (another device, too few slots, too little
// memory, an agent's restriction), or next to what they need there.
//
// Reserved slots that are idle may be backfilled with preemptible jobs. These save and leave for the
// reserving job (preemption.h) as soon as that is enough for it to start. A firm reservation allows no
// backfill: the missing slots are already being freed, so a backfilled job would be preempted immediately.
//
// Job durations are not used: predictions are estimates, and jobs are cancelled and fail, so a guarantee
// based on them would not hold.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/schedule/placer.h"

namespace fsdpd {

class Reservations {
 public:
  explicit Reservations(std::vector<NodeSlots> now);

  // The job at the head of the remaining queue waits for slots.
  void Add(const std::string& job, const PlaceRequest& request, bool firm);
  // Jobs were launched: recomputes the free slots with the same reservations.
  void Renew(std::vector<NodeSlots> now);

  const std::vector<NodeSlots>& now() const { return now_; }  // Ignores reservations.
  const std::vector<NodeSlots>& unreserved() const { return unreserved_; }
  // Excludes firm reservations only.
  const std::vector<NodeSlots>& backfillable() const { return backfillable_; }
  bool empty() const { return reservations_.empty(); }

  // Returns the first job that reserves a node which `request` could use, or "".
  std::string Ahead(const PlaceRequest& request) const;
  // Returns `nodes` without their reserved slots.
  std::vector<NodeSlots> Without(std::vector<NodeSlots> nodes) const;

 private:
  struct Reservation {
    std::string job;
    PlaceRequest request;
    bool firm = false;
  };

  std::vector<Reservation> reservations_;
  std::vector<NodeSlots> now_, unreserved_, backfillable_;
};

}  // namespace fsdpd
