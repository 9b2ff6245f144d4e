#include "fsdp/memory/recorder.h"

#include "fsdp/memory/cuda_recorder.h"
#include "fsdp/memory/host_caching_allocator.h"

namespace fsdpd {

void RecordMemory(DeviceKind device, bool on) {
  if (device == DeviceKind::kCuda) return RecordCudaMemory(on);
  ProcessHostAllocator().Record(on);
}

MemorySnapshot TakeMemorySnapshot(DeviceKind device, int device_index) {
  if (device == DeviceKind::kCuda) return TakeCudaMemorySnapshot(device_index);
  return ProcessHostAllocator().Snapshot();
}

}  // namespace fsdpd
