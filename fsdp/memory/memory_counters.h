// What an allocator counts; counters.h says for which device.
#pragma once

#include <cstdint>

namespace fsdpd {

struct MemoryCounters {
  int64_t allocated_bytes = 0;  // Live now.
  int64_t reserved_bytes = 0;   // Held from the device now.
  int64_t peak_bytes = 0;       // Highest allocated_bytes since ResetPeak.
  int64_t device_mallocs = 0;   // Since the process started.
  int64_t device_frees = 0;
  int64_t allocations = 0;  // Requests, served from the cache or not.
};

}  // namespace fsdpd
