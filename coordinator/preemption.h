// Which jobs save and leave for one of a higher priority. Only those whose submitters allowed it
// (SubmitJobRequest.preemptible), whose priority is less (so that no two ever take each other's slots in
// turn), and that lose nothing by it; and only when the one that waits could be placed then. As few as that
// takes: of the lowest priority first, then those that were launched last.
//
// What leaves already is waited for before anybody else is asked to.
//
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/placer.h"

namespace fsdpd {

// A job that holds slots.
struct Occupant {
  std::string job;
  int64_t priority = 0;
  int64_t start_unix_nanos = 0;
  bool leaves = false;                              // Its slots fall free by themselves.
  bool may_leave = false;                           // It is preemptible, and could save now.
  std::map<std::string, std::vector<int>> devices;  // By node.
};

// Empty where nobody is to leave: what leaves already is enough, or all that may would not be.
// REQUIRES: `request` cannot be placed on `nodes`.
std::vector<std::string> ChooseToLeave(const PlaceRequest& request, int64_t priority,
                                       const std::vector<NodeSlots>& nodes,
                                       const std::vector<Occupant>& occupants);

}  // namespace fsdpd
