// What an allocator counts; counters.h says for which device.
#pragma once

#include <cstdint>

namespace fsdpd {

struct MemoryCounters {
  int64_t allocated_bytes = 0;  // Live now.
  int64_t reserved_bytes = 0;   // Held from the device now.
  int64_t peak_bytes = 0;       // Highest allocated_bytes since ResetPeak.
  // Since the process started, as all that follow. CUDA: by anybody, and not the allocator alone
  // (device_calls.h).
  int64_t device_mallocs = 0;
  int64_t device_frees = 0;
  int64_t allocations = 0;    // Requests, served from the cache or not.
  int64_t retries = 0;        // Times that it gave all it had back and asked the device again.
  int64_t out_of_memory = 0;  // Requests that failed even then.
};

}  // namespace fsdpd
