// One simulated cluster and what befalls it, all of one seed: some minutes in which machines, network and
// disk fail and people ask for this and that, then quiet, in which every job that was accepted must end or
// say why it waits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdpd::sim {

struct Outcome {
  std::string violation;           // "" when every invariant held.
  std::vector<std::string> lines;  // The last ones of what happened.
  uint64_t hash = 0;               // Of all of them.
  double virtual_seconds = 0;
  int jobs = 0;
};

Outcome Run(uint64_t seed, bool verbose = false);

}  // namespace fsdpd::sim
