// What the device's allocator did: live bytes, held bytes, the peak, and how often the device was asked.
// CUDA: LibTorch's caching allocator, and device_calls.h. CPU: HostCachingAllocator
// (host_caching_allocator.h), which gives CPU ranks the same meanings; all zero where it was not installed.
// Bytes are those of the blocks handed out, which both round up. Thread-safe.
#pragma once

#include "fsdp/memory/memory_counters.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// REQUIRES for kCuda: a binary built with --config=cuda.
MemoryCounters ReadMemoryCounters(DeviceKind device, int device_index);
void ResetPeakMemory(DeviceKind device, int device_index);

}  // namespace fsdpd
