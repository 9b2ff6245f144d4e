#include "fsdp/telemetry/memory_file.h"

#include <absl/strings/str_cat.h>

#include <map>

#include "fsdp/checkpoint/format/pickle_writer.h"

namespace fsdpd {
namespace {

using Action = MemorySnapshot::Action;

const char* NameOf(Action action) {
  switch (action) {
    case Action::kAlloc:
      return "alloc";
    case Action::kFreeRequested:
      return "free_requested";
    case Action::kFreeCompleted:
      return "free_completed";
    case Action::kSegmentAlloc:
      return "segment_alloc";
    case Action::kSegmentFree:
      return "segment_free";
    case Action::kSegmentMap:
      return "segment_map";
    case Action::kSegmentUnmap:
      return "segment_unmap";
    case Action::kSnapshot:
      return "snapshot";
    case Action::kOutOfMemory:
      return "oom";
  }
  return "snapshot";
}

class Writer {
 public:
  Writer(const MemorySnapshot& snapshot, const std::function<std::string(int)>& name_of)
      : snapshot_(snapshot), name_of_(name_of) {}

  std::string Write() {
    Begin();
    pickle_.Text("segments");
    pickle_.EmptyList();
    pickle_.Mark();
    for (const MemorySnapshot::Segment& segment : snapshot_.segments) Add(segment);
    pickle_.Appends();
    pickle_.Text("device_traces");
    AddTraces();
    pickle_.Text("external_annotations");
    pickle_.EmptyList();
    End();
    return pickle_.Take();
  }

 private:
  void Begin() {
    pickle_.EmptyDict();
    pickle_.Mark();
  }
  void End() { pickle_.SetItems(); }

  void Put(const char* key, int64_t value) {
    pickle_.Text(key);
    pickle_.Int(value);
  }
  void Put(const char* key, uint64_t value) { Put(key, static_cast<int64_t>(value)); }
  void Put(const char* key, const std::string& value) {
    pickle_.Text(key);
    pickle_.Text(value);
  }

  // The origin as a stack of one frame; shared ones are written once.
  void PutFrames(const MemoryPlace& place) {
    pickle_.Text("frames");
    const auto known = frames_.find(place);
    if (known != frames_.end()) return pickle_.Again(known->second);
    pickle_.EmptyList();
    frames_[place] = pickle_.Remember();
    if (place.instruction == MemoryPlace::kNowhere) return;
    pickle_.Mark();
    Begin();
    const bool evaluates = place.instruction == MemoryPlace::kEvaluation;
    Put("name", evaluates ? "evaluation" : name_of_(place.instruction));
    Put("filename", absl::StrCat("step ", place.step));
    Put("line", int64_t{evaluates ? 0 : place.instruction});
    End();
    pickle_.Appends();
  }

  void Add(const MemorySnapshot::Segment& segment) {
    int64_t allocated = 0, active = 0, asked = 0;
    for (const MemorySnapshot::Block& block : segment.blocks) {
      allocated += block.allocated ? block.bytes : 0;
      active += block.active ? block.bytes : 0;
      asked += block.active ? block.asked_bytes : 0;
    }
    Begin();
    Put("device", int64_t{snapshot_.device});
    Put("address", segment.address);
    Put("total_size", segment.bytes);
    Put("allocated_size", allocated);
    Put("active_size", active);
    Put("requested_size", asked);
    Put("stream", segment.stream);
    Put("segment_type", std::string(segment.is_large ? "large" : "small"));
    pickle_.Text("is_expandable");
    pickle_.Bool(segment.is_expandable);
    PutFrames(segment.place);
    pickle_.Text("blocks");
    pickle_.EmptyList();
    pickle_.Mark();
    uint64_t address = segment.address;
    for (const MemorySnapshot::Block& block : segment.blocks) {
      Begin();
      Put("address", address);
      Put("size", block.bytes);
      Put("requested_size", block.asked_bytes);
      Put("state", std::string(block.allocated ? "active_allocated"
                               : block.active  ? "active_pending_free"
                                               : "inactive"));
      PutFrames(block.place);
      End();
      address += static_cast<uint64_t>(block.bytes);
    }
    pickle_.Appends();
    End();
  }

  // One list per device, up to this one.
  void AddTraces() {
    pickle_.EmptyList();
    pickle_.Mark();
    for (int device = 0; device < snapshot_.device; ++device) pickle_.EmptyList();
    pickle_.EmptyList();
    pickle_.Mark();
    for (const MemorySnapshot::Event& event : snapshot_.events) {
      Begin();
      Put("action", std::string(NameOf(event.action)));
      // For this action it is the free memory.
      Put(event.action == Action::kOutOfMemory ? "device_free" : "addr", event.address);
      Put("size", event.bytes);
      Put("stream", event.stream);
      Put("time_us", event.unix_micros);
      PutFrames(event.place);
      End();
    }
    pickle_.Appends();
    pickle_.Appends();
  }

  const MemorySnapshot& snapshot_;
  const std::function<std::string(int)>& name_of_;
  PickleWriter pickle_;
  std::map<MemoryPlace, int64_t> frames_;  // By memo index.
};

}  // namespace

std::string MemoryFile(const MemorySnapshot& snapshot, const std::function<std::string(int)>& name_of) {
  return Writer(snapshot, name_of).Write();
}

}  // namespace fsdpd
