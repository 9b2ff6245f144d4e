// Which jobs save and leave for one that waits. Only those whose submitters allowed it
// (SubmitJobRequest.preemptible), whose priority is less (so that no two ever take each other's slots in
// turn), and that lose nothing by it; or that were lent slots which one before them claims (reservations.h),
// for that one. And only when the one that waits could be placed then, beside what those before it claim. As
// few as that takes: of the lowest priority first, then those that were launched last.
//
// What leaves already, as does what measures a node (preflighting.cc), is waited for before anybody else is
// asked to.
//
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/placer.h"
#include "coordinator/reservations.h"

namespace fsdpd {

// A job that holds slots, or what measures a node and is no job ("").
struct Occupant {
  std::string job;
  int64_t priority = 0;
  int64_t start_unix_nanos = 0;
  bool leaves = false;     // Its slots fall free by themselves.
  bool may_leave = false;  // It is preemptible, and could save now.
  bool lent = false;       // Its slots, by who waits: it leaves whatever its priority.
  std::map<std::string, std::vector<int>> devices;  // By node.
};

struct Room {
  bool comes = false;              // It can be placed when `leave`, and who leaves already, have left.
  std::vector<std::string> leave;  // Who is to, and does not yet.
};

// REQUIRES: `request` cannot be placed on `nodes` beside `ahead`, which those before it claim.
Room ChooseToLeave(const PlaceRequest& request, int64_t priority, const std::vector<NodeSlots>& nodes,
                   const Reservations& ahead, const std::vector<Occupant>& occupants);

}  // namespace fsdpd
