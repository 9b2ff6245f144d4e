// What an allocator holds at one moment, and what it did before that: plain data, for
// fsdp/telemetry/memory_file.h to write down. recorder.h takes it.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/memory/memory_place.h"

namespace fsdpd {

struct MemorySnapshot {
  // The oldest go first beyond so many: some steps of a large model.
  static constexpr int64_t kMostEvents = 200'000;

  enum class Action {
    kAlloc,
    kFreeRequested,
    kFreeCompleted,
    kSegmentAlloc,  // Asked of the device.
    kSegmentFree,
    kSegmentMap,  // Of a segment that grows.
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
  // Blocks lie one after the other from their segment's address on.
  struct Block {
    int64_t bytes = 0;
    int64_t asked_bytes = 0;  // Before they were rounded up.
    bool allocated = false;
    bool active = false;  // Allocated, or still in use on another stream.
    MemoryPlace place;    // Where it was allocated; nowhere where that was not recorded.
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
