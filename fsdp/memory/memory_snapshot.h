// Memory snapshot: state of an allocator and its history of events, as plain data. recorder.h takes it,
// fsdp/telemetry/memory_file.h formats it.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/memory/memory_place.h"

namespace fsdpd {

struct MemorySnapshot {
  // The oldest events are dropped beyond this number, which is some steps of a large model.
  static constexpr int64_t kMostEvents = 200'000;

  enum class Action {
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
