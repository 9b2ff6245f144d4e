// device_allocator.h for binaries built without --config=cuda.
#include "base/check.h"
#include "fsdp/memory/device_allocator.h"
#include "fsdp/memory/host_caching_allocator.h"

namespace fsdpd {
namespace {

HostCachingAllocator& AllocatorOf(DeviceKind device) {
  FSDPD_CHECK(device == DeviceKind::kCpu);
  return ProcessHostAllocator();
}

}  // namespace

MemoryCounters ReadMemoryCounters(DeviceKind device, int /*device_index*/) {
  return AllocatorOf(device).Read();
}

void ResetPeakMemory(DeviceKind device, int /*device_index*/) { AllocatorOf(device).ResetPeak(); }

void RecordMemory(DeviceKind device, bool on) { AllocatorOf(device).Record(on); }

MemorySnapshot TakeMemorySnapshot(DeviceKind device, int /*device_index*/) {
  return AllocatorOf(device).Snapshot();
}

}  // namespace fsdpd
