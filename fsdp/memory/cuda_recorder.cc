#include "fsdp/memory/cuda_recorder.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>

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

Action ActionOf(TraceEntry::Action action) {
  switch (action) {
    case TraceEntry::ALLOC:
      return Action::kAlloc;
    case TraceEntry::FREE_REQUESTED:
      return Action::kFreeRequested;
    case TraceEntry::FREE_COMPLETED:
      return Action::kFreeCompleted;
    case TraceEntry::SEGMENT_ALLOC:
      return Action::kSegmentAlloc;
    case TraceEntry::SEGMENT_FREE:
      return Action::kSegmentFree;
    case TraceEntry::SEGMENT_MAP:
      return Action::kSegmentMap;
    case TraceEntry::SEGMENT_UNMAP:
      return Action::kSegmentUnmap;
    case TraceEntry::SNAPSHOT:
      return Action::kSnapshot;
    case TraceEntry::OOM:
      return Action::kOutOfMemory;
  }
  return Action::kSnapshot;
}

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

}  // namespace

void RecordCudaMemory(bool on) {
  allocator::recordHistory(on, on ? &GatherPlace : nullptr, MemorySnapshot::kMostEvents,
                           on ? RecordContext::ALL : RecordContext::NEVER, /*clearHistory=*/on,
                           /*skip_actions=*/{});
}

MemorySnapshot TakeCudaMemorySnapshot(int device_index) {
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
