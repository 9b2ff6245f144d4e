#include "fsdp/memory/counters.h"

#include "fsdp/memory/cuda_counters.h"
#include "fsdp/memory/host_caching_allocator.h"

namespace fsdpd {

MemoryCounters ReadMemoryCounters(DeviceKind device, int device_index) {
  if (device == DeviceKind::kCuda) return ReadCudaMemoryCounters(device_index);
  return ProcessHostAllocator().Read();
}

void ResetPeakMemory(DeviceKind device, int device_index) {
  if (device == DeviceKind::kCuda) return ResetCudaPeakMemory(device_index);
  ProcessHostAllocator().ResetPeak();
}

}  // namespace fsdpd
