#include "fsdp/telemetry/memory_file.h"

#include <absl/strings/str_cat.h>

#include <iterator>
#include <map>

#include "fsdp/checkpoint/format/pickle_writer.h"

namespace fsdpd {
namespace {

using Action = MemorySnapshot::Action;

// By action.
constexpr const char* kNames[] = {"alloc",         "free_requested", "free_completed",
                                  "segment_alloc", "segment_free",   "segment_map",
                                  "segment_unmap", "snapshot",       "oom"};
static_assert(std::size(kNames) == static_cast<size_t>(Action::kOutOfMemory) + 1);

class Writer {
 public:
  Writer(const MemorySnapshot& snapshot, const std::function<std::string(int)>& name_of)
      : snapshot_(snapshot), name_of_(name_of) {}

  std::string Write() {
    pickle_.BeginDict();
    pickle_.Text("segments");
    pickle_.BeginList();
    for (const MemorySnapshot::Segment& segment : snapshot_.segments) Add(segment);
    pickle_.Appends();
    pickle_.Text("device_traces");
    AddTraces();
    pickle_.Text("external_annotations");
    pickle_.EmptyList();
    pickle_.SetItems();
    return pickle_.Take();
  }

 private:
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
    pickle_.BeginDict();
    const bool evaluates = place.instruction == MemoryPlace::kEvaluation;
    Put("name", evaluates ? "evaluation" : name_of_(place.instruction));
    Put("filename", absl::StrCat("step ", place.step));
    Put("line", int64_t{evaluates ? 0 : place.instruction});
    pickle_.SetItems();
    pickle_.Appends();
  }

  void Add(const MemorySnapshot::Segment& segment) {
    int64_t allocated = 0, active = 0, asked = 0;
    for (const MemorySnapshot::Block& block : segment.blocks) {
      allocated += block.allocated ? block.bytes : 0;
      active += block.active ? block.bytes : 0;
      asked += block.active ? block.asked_bytes : 0;
    }
    pickle_.BeginDict();
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
    pickle_.BeginList();
    uint64_t address = segment.address;
    for (const MemorySnapshot::Block& block : segment.blocks) {
      pickle_.BeginDict();
      Put("address", address);
      Put("size", block.bytes);
      Put("requested_size", block.asked_bytes);
      Put("state", std::string(block.allocated ? "active_allocated"
                               : block.active  ? "active_pending_free"
                                               : "inactive"));
      PutFrames(block.place);
      pickle_.SetItems();
      address += static_cast<uint64_t>(block.bytes);
    }
    pickle_.Appends();
    pickle_.SetItems();
  }

  // One list per device, up to this one.
  void AddTraces() {
    pickle_.BeginList();
    for (int device = 0; device < snapshot_.device; ++device) pickle_.EmptyList();
    pickle_.BeginList();
    for (const MemorySnapshot::Event& event : snapshot_.events) {
      pickle_.BeginDict();
      Put("action", std::string(kNames[static_cast<size_t>(event.action)]));
      // For this action it is the free memory.
      Put(event.action == Action::kOutOfMemory ? "device_free" : "addr", event.address);
      Put("size", event.bytes);
      Put("stream", event.stream);
      Put("time_us", event.unix_micros);
      PutFrames(event.place);
      pickle_.SetItems();
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
