#include "fsdp/memory/cuda_counters.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include "fsdp/memory/device_calls.h"

namespace fsdpd {
namespace {

const c10::CachingAllocator::Stat& Aggregate(const c10::CachingAllocator::StatArray& stats) {
  return stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

}  // namespace

MemoryCounters ReadCudaMemoryCounters(int device_index) {
  MemoryCounters counters;
  const DeviceCalls calls = ReadDeviceCalls(device_index);
  counters.device_mallocs = calls.mallocs;
  counters.device_frees = calls.frees;
  // Before the first tensor on a device there are no statistics, and reading them throws.
  if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return counters;
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device_index));
  counters.allocated_bytes = Aggregate(stats.allocated_bytes).current;
  counters.reserved_bytes = Aggregate(stats.reserved_bytes).current;
  counters.peak_bytes = Aggregate(stats.allocated_bytes).peak;
  counters.allocations = Aggregate(stats.allocation).allocated;
  counters.retries = stats.num_alloc_retries;
  counters.out_of_memory = stats.num_ooms;
  return counters;
}

void ResetCudaPeakMemory(int device_index) {
  if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return;
  c10::cuda::CUDACachingAllocator::resetPeakStats(static_cast<c10::DeviceIndex>(device_index));
}

}  // namespace fsdpd
