// Memory counters of a device's allocator: allocated and reserved bytes, the peak, and calls to the device.
// CUDA: LibTorch's caching allocator and device_calls.h. CPU: HostCachingAllocator
// (host_caching_allocator.h), with the same meaning; all zero unless it is installed. Sizes are those of
// rounded-up blocks. Thread-safe.
#pragma once

#include "fsdp/memory/memory_counters.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// REQUIRES for kCuda: a binary built with --config=cuda.
MemoryCounters ReadMemoryCounters(DeviceKind device, int device_index);
void ResetPeakMemory(DeviceKind device, int device_index);

}  // namespace fsdpd
