#include "fsdp/memory/cuda_counters.h"

#include <c10/cuda/CUDACachingAllocator.h>

namespace fsdpd {
namespace {

const c10::CachingAllocator::Stat& Aggregate(const c10::CachingAllocator::StatArray& stats) {
  return stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

}  // namespace

MemoryCounters ReadCudaMemoryCounters(int device_index) {
  MemoryCounters counters;
  // Until the first tensor is on a device there are no statistics, and asking for them throws.
  if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return counters;
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device_index));
  counters.allocated_bytes = Aggregate(stats.allocated_bytes).current;
  counters.reserved_bytes = Aggregate(stats.reserved_bytes).current;
  counters.peak_bytes = Aggregate(stats.allocated_bytes).peak;
  counters.device_mallocs = stats.num_device_alloc;
  counters.device_frees = stats.num_device_free;
  counters.allocations = Aggregate(stats.allocation).allocated;
  return counters;
}

void ResetCudaPeakMemory(int device_index) {
  if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return;
  c10::cuda::CUDACachingAllocator::resetPeakStats(static_cast<c10::DeviceIndex>(device_index));
}

}  // namespace fsdpd
