// Which cores are near a GPU: those of the NUMA node that it is wired to, as far as this process may use
// them. A rank that runs there has its memory there too, pinned memory among it, since the kernel gives a
// thread pages of the node that it runs on; what it copies to its GPU and what it starts there takes no way
// through the other processor.
//
// Where the machine says nothing of it, or has one node, or the process was given other cores alone or for
// the most part, nothing is bound: who chose cores for it knows better.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

namespace fsdpd {

struct NearCores {
  int node = -1;
  std::vector<int> cores;  // Ascending; empty: nothing is to be bound.
  std::string why_not;     // Then; for people.
};

// `pci_bus_id`: "0000:18:00.0". `allowed`: AllowedCores(). Reads the kernel's files below `sysfs`.
NearCores FindNearCores(const std::string& sysfs, const std::string& pci_bus_id,
                        const std::vector<int>& allowed);

// Of the calling thread.
std::vector<int> AllowedCores();

// The calling thread, and those that it starts from then on.
absl::Status RunOn(const std::vector<int>& cores);

}  // namespace fsdpd
