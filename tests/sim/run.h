// One simulated run of a cluster, determined by its seed: a period in which machines, network and disk fail
// while users make requests, and then a period without faults in which every accepted job must end or report
// why it waits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdpd::sim {

struct Outcome {
  std::string violation;           // "" if no invariant was violated.
  std::vector<std::string> lines;  // The last lines of the log.
  uint64_t hash = 0;               // Hash of the whole log.
  double virtual_seconds = 0;
  int jobs = 0;
};

Outcome Run(uint64_t seed, bool verbose = false);

}  // namespace fsdpd::sim
