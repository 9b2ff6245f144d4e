// What the device's allocator did: live bytes, held bytes, the peak, and how often it had to ask the device.
// CUDA: LibTorch's caching allocator. CPU: HostCachingAllocator (host_caching_allocator.h), which gives CPU
// ranks the same meanings.
#pragma once

#include <cstdint>

#include "fsdp/plan/spec.h"

namespace fsdpd {

struct MemoryCounters {
  int64_t allocated_bytes = 0;  // Live now.
  int64_t reserved_bytes = 0;   // Held from the device now.
  int64_t peak_bytes = 0;       // Highest allocated_bytes since ResetPeak.
  int64_t device_mallocs = 0;   // Since the process started.
  int64_t device_frees = 0;
  int64_t allocations = 0;  // Requests, served from the cache or not.
};

MemoryCounters ReadMemoryCounters(DeviceKind device, int device_index);
void ResetPeakMemory(DeviceKind device, int device_index);

}  // namespace fsdpd
