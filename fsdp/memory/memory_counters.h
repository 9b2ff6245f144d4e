// Counters of an allocator; counters.h reads them for a device.
#pragma once

#include <cstdint>

namespace fsdpd {

struct MemoryCounters {
  int64_t allocated_bytes = 0;  // Live now.
  int64_t reserved_bytes = 0;   // Obtained from the device and not returned.
  int64_t peak_bytes = 0;       // Highest allocated_bytes since ResetPeak.
  // The following count since process start. CUDA: device calls of the whole process, not only the allocator
  // (device_calls.h).
  int64_t device_mallocs = 0;
  int64_t device_frees = 0;
  int64_t allocations = 0;    // Requests, whether served from the cache or not.
  int64_t retries = 0;        // Times the cache was emptied to retry a request.
  int64_t out_of_memory = 0;  // Requests that failed after a retry.
};

}  // namespace fsdpd
