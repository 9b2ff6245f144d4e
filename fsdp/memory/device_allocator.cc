#include "fsdp/memory/device_allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>

#include "fsdp/memory/device_calls.h"
#include "fsdp/memory/host_caching_allocator.h"

namespace fsdpd {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::TraceEntry;
using Action = MemorySnapshot::Action;

struct PlaceContext : c10::GatheredContext {
  MemoryPlace place;
};

std::shared_ptr<c10::GatheredContext> GatherPlace() {
  auto context = std::make_shared<PlaceContext>();
  context->place = MemoryPlaceWithOthers();
  return context;
}

MemoryPlace PlaceOf(const std::shared_ptr<c10::GatheredContext>& context) {
  const auto* place = dynamic_cast<const PlaceContext*>(context.get());
  return place != nullptr ? place->place : MemoryPlace();
}

uint64_t NumberOf(const void* stream) { return reinterpret_cast<uintptr_t>(stream); }

// Both enums have the same order.
static_assert(static_cast<int>(TraceEntry::SEGMENT_MAP) == static_cast<int>(Action::kSegmentMap));
static_assert(static_cast<int>(TraceEntry::OOM) == static_cast<int>(Action::kOutOfMemory));
Action ActionOf(TraceEntry::Action action) { return static_cast<Action>(action); }

MemorySnapshot::Segment SegmentOf(const c10::CachingDeviceAllocator::SegmentInfo& info) {
  MemorySnapshot::Segment segment;
  segment.address = info.address;
  segment.bytes = static_cast<int64_t>(info.total_size);
  segment.stream = NumberOf(info.stream);
  segment.is_large = info.is_large;
  segment.is_expandable = info.is_expandable;
  segment.place = PlaceOf(info.context_when_allocated);
  for (const auto& block : info.blocks) {
    segment.blocks.push_back({static_cast<int64_t>(block.size), static_cast<int64_t>(block.requested_size),
                              block.allocated, block.active, PlaceOf(block.context_when_allocated)});
  }
  return segment;
}

const c10::CachingAllocator::Stat& Aggregate(const c10::CachingAllocator::StatArray& stats) {
  return stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

}  // namespace

MemoryCounters ReadMemoryCounters(DeviceKind device, int device_index) {
  if (device == DeviceKind::kCpu) return ProcessHostAllocator().Read();
  MemoryCounters counters;
  const DeviceCalls calls = ReadDeviceCalls(device_index);
  counters.device_mallocs = calls.mallocs;
  counters.device_frees = calls.frees;
  // Before the first tensor on a device there are no statistics, and reading them throws.
  if (!allocator::get()->initialized()) return counters;
  const auto stats = allocator::getDeviceStats(static_cast<c10::DeviceIndex>(device_index));
  counters.allocated_bytes = Aggregate(stats.allocated_bytes).current;
  counters.reserved_bytes = Aggregate(stats.reserved_bytes).current;
  counters.peak_bytes = Aggregate(stats.allocated_bytes).peak;
  counters.allocations = Aggregate(stats.allocation).allocated;
  counters.retries = stats.num_alloc_retries;
  counters.out_of_memory = stats.num_ooms;
  return counters;
}

void ResetPeakMemory(DeviceKind device, int device_index) {
  if (device == DeviceKind::kCpu) return ProcessHostAllocator().ResetPeak();
  if (allocator::get()->initialized()) allocator::resetPeakStats(static_cast<c10::DeviceIndex>(device_index));
}

void RecordMemory(DeviceKind device, bool on) {
  if (device == DeviceKind::kCpu) return ProcessHostAllocator().Record(on);
  allocator::recordHistory(on, on ? &GatherPlace : nullptr, MemorySnapshot::kMostEvents,
                           on ? RecordContext::ALL : RecordContext::NEVER, /*clearHistory=*/on,
                           /*skip_actions=*/{});
}

MemorySnapshot TakeMemorySnapshot(DeviceKind device, int device_index) {
  if (device == DeviceKind::kCpu) return ProcessHostAllocator().Snapshot();
  MemorySnapshot snapshot;
  snapshot.device = device_index;
  if (!allocator::get()->initialized()) return snapshot;
  const allocator::SnapshotInfo info = allocator::snapshot();
  for (const auto& segment : info.segments) {
    if (segment.device == device_index) snapshot.segments.push_back(SegmentOf(segment));
  }
  if (device_index >= static_cast<int>(info.device_traces.size())) return snapshot;
  for (const TraceEntry& entry : info.device_traces[device_index]) {
    snapshot.events.push_back({ActionOf(entry.action_), entry.addr_, static_cast<int64_t>(entry.size_),
                               NumberOf(entry.stream_), static_cast<int64_t>(entry.time_.t_),
                               PlaceOf(entry.context_)});
  }
  return snapshot;
}

}  // namespace fsdpd
