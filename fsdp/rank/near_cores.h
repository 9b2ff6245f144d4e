// CPU affinity for a GPU: the cores of the NUMA node that the GPU is attached to, restricted to what this
// process may use. The kernel allocates memory, pinned memory included, on the node of the thread that asks,
// so a rank that is bound to these cores copies to its GPU and launches kernels without crossing the
// interconnect of the processors.
//
// Nothing is bound if the machine does not provide the topology or has one node, or if the process is already
// restricted to (mostly) other cores: its owner's choice takes precedence.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

namespace fsdpd {

struct NearCores {
  int node = -1;
  std::vector<int> cores;  // Ascending; empty: do not bind.
  std::string why_not;     // If empty, the reason, for users.
};

// `pci_bus_id`: "0000:18:00.0". `allowed`: AllowedCores(). Reads the kernel's files below `sysfs`.
NearCores FindNearCores(const std::string& sysfs, const std::string& pci_bus_id,
                        const std::vector<int>& allowed);

// Cores of the calling thread.
std::vector<int> AllowedCores();

// Binds the calling thread, and the threads it starts afterwards.
absl::Status RunOn(const std::vector<int>& cores);

}  // namespace fsdpd
