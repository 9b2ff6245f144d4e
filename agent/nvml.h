// The four calls of NVIDIA's management library that the agent needs, found at run time: the same agent runs
// on nodes without a driver. NVML opens no CUDA context, so it takes no device memory from ranks.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

namespace fsdpd {

// What does not change while processes come and go.
struct GpuMemory {
  int64_t total_bytes = 0;
  int64_t reserved_bytes = 0;  // The driver's own share of the total.
};

// One entry per GPU, by index. UNAVAILABLE when there is no driver, or it fails; its message says which.
absl::StatusOr<std::vector<GpuMemory>> ReadGpus();

}  // namespace fsdpd
