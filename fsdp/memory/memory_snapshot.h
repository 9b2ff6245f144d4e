// Memory counters, and memory snapshot: state of an allocator and its history of events, as plain data.
// device_allocator.h takes them, fsdp/telemetry/memory_file.h formats a snapshot.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/memory/memory_place.h"

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

struct MemorySnapshot {
  // The oldest events are dropped beyond this number, which is some steps of a large model.
  static constexpr int64_t kMostEvents = 200'000;

  enum class Action {  // As in LibTorch.
    kAlloc,
    kFreeRequested,
    kFreeCompleted,
    kSegmentAlloc,  // Allocated from the device.
    kSegmentFree,
    kSegmentMap,  // An expandable segment grows.
    kSegmentUnmap,
    kSnapshot,
    kOutOfMemory,
  };
  struct Event {
    Action action = Action::kAlloc;
    uint64_t address = 0;
    int64_t bytes = 0;
    uint64_t stream = 0;
    int64_t unix_micros = 0;
    MemoryPlace place;
  };
  // Blocks are consecutive, starting at the address of their segment.
  struct Block {
    int64_t bytes = 0;
    int64_t asked_bytes = 0;  // Requested size, before rounding.
    bool allocated = false;
    bool active = false;  // Allocated, or still in use on another stream.
    MemoryPlace place;    // Where it was allocated; kNowhere if not recorded.
  };
  struct Segment {
    uint64_t address = 0;
    int64_t bytes = 0;
    uint64_t stream = 0;
    bool is_large = true;
    bool is_expandable = false;
    MemoryPlace place;
    std::vector<Block> blocks;
  };

  int device = 0;
  std::vector<Segment> segments;
  std::vector<Event> events;  // In order.
};

}  // namespace fsdpd
