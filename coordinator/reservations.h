// Which slots a job may take while others that go before it wait for slots: such as hold none of them up.
//
// A job that waits claims, on each node that could take its ranks were it idle, as many free slots as it has
// ranks there; all but it, and those before it, go without. What falls free there later is claimed as well,
// so that it starts when it would have started had nobody passed it. Whoever fits beside all claims passes:
// on nodes that the others cannot use (another device, too few slots, too little memory, what an agent does
// not allow), or beside what they need there.
//
// Slots that are claimed and lie idle may be lent to jobs that are preemptible, which save and leave for who
// claims them (preemption.h) as soon as that is enough for it to start. A firm claim lends none: what is
// missing falls free already, and who was lent slots then would be told to leave at once.
//
// How long a job runs is not asked: predicted times are estimates, jobs are cancelled and fail, and a promise
// that rests on them is none.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/placer.h"

namespace fsdpd {

class Reservations {
 public:
  explicit Reservations(std::vector<NodeSlots> now);

  // `job`, whose turn is now, waits for slots.
  void Add(const std::string& job, const PlaceRequest& request, bool firm);
  // Jobs were launched: what is free now, with the same claims.
  void Renew(std::vector<NodeSlots> now);

  const std::vector<NodeSlots>& now() const { return now_; }  // Whoever claims what.
  const std::vector<NodeSlots>& unreserved() const { return unreserved_; }
  const std::vector<NodeSlots>& backfillable() const { return backfillable_; }  // And what firm claims leave.
  bool empty() const { return reservations_.empty(); }

  // The first job that claims a node which `request` could use; "" where there is none.
  std::string Ahead(const PlaceRequest& request) const;
  // `nodes` without what is claimed there.
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
