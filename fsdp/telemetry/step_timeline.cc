#include "fsdp/telemetry/step_timeline.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr int kNone = -1;

// Tracks per stream of the device: more concurrency, as in a graph, is rare.
constexpr size_t kMostTracks = 4;

Timeline::Arguments ArgumentsOf(const Program& program, const Layout& layout, const Span& span, int index,
                                int64_t step) {
  const Instruction& instruction = program.instructions[index];
  Timeline::Arguments arguments = {{"step", span.of_step_before ? step - 1 : step}, {"instruction", index}};
  if (instruction.unit >= 0) arguments.emplace_back("unit", layout.units[instruction.unit].name);
  if (instruction.bucket >= 0) arguments.emplace_back("bucket", instruction.bucket);
  if (instruction.micro_batch >= 0) arguments.emplace_back("micro_batch", instruction.micro_batch);
  if (span.received_bytes > 0) arguments.emplace_back("received_bytes", span.received_bytes);
  return arguments;
}

// The slice that represents an instruction without its own: the preceding one on its lane.
int SliceAt(const Program& program, const std::vector<int>& slices, int index) {
  const LaneId lane = program.instructions[index].lane;
  for (int i = index; i >= 0; --i) {
    if (slices[i] != kNone && program.instructions[i].lane == lane) return slices[i];
  }
  return kNone;
}

void AddFlows(const Program& program, const std::vector<Span>& spans, const std::vector<int>& slices,
              int index, Timeline* timeline) {
  if (slices[index] == kNone) return;
  const Instruction& instruction = program.instructions[index];
  const bool before = spans[index].of_step_before;
  const auto add = [&](int from) {
    if (from != kNone) timeline->flows.push_back({from, slices[index]});
  };
  for (const int earlier : instruction.after) {
    if (spans[earlier].of_step_before == before) add(SliceAt(program, slices, earlier));
  }
  // Updates that a graph launch started with, and what waited for them.
  for (const int earlier : instruction.after_previous) {
    if (!before && spans[earlier].of_step_before) add(slices[earlier]);
  }
}

// Live bytes of the arena, whenever that changes.
std::vector<Timeline::Sample> ArenaSamples(const Program& program, const std::vector<Span>& spans) {
  std::map<double, int64_t> changes = {{0, 0}};
  for (const Buffer& buffer : program.buffers) {
    for (const Buffer::Interval& live : buffer.live) {
      changes[std::max(0.0, spans[live.born].start_seconds)] += buffer.bytes;
      changes[std::max(0.0, spans[live.dies].end_seconds)] -= buffer.bytes;
    }
  }
  std::vector<Timeline::Sample> samples;
  int64_t bytes = 0;
  for (const auto& [at, change] : changes) samples.push_back({at, {bytes += change}});
  return samples;
}

// Adds the lanes that every step has, followed by other lanes that this one uses. Returns the track of each
// lane.
std::vector<int> TracksOf(const Program& program, Timeline* timeline) {
  std::vector<int> tracks(kLanes, kNone);
  for (int l = 0; l < kLanes; ++l) {
    const auto lane = static_cast<LaneId>(l);
    const bool used =
        std::any_of(program.instructions.begin(), program.instructions.end(),
                    [lane](const Instruction& instruction) { return instruction.lane == lane; });
    if (lane >= LaneId::kSend && !used) continue;
    tracks[l] = static_cast<int>(timeline->tracks.size());
    timeline->tracks.push_back(NameOf(lane));
  }
  return tracks;
}

}  // namespace

// "#12 Backward layer.3 mb 0 on compute after #9" without what lane and order already show.
std::string NameOfInstruction(const Program& program, const Layout& layout, int index) {
  std::string text = Describe(program, layout, index);
  const std::string lane = absl::StrCat(" on ", NameOf(program.instructions[index].lane));
  text.resize(std::min(text.size(), text.rfind(lane)));
  return text.substr(text.find(' ') + 1);
}

Timeline StepTimeline(const Program& program, const Layout& layout, const std::vector<Span>& spans,
                      int64_t step, const std::string& title) {
  FSDPD_CHECK(spans.size() == program.instructions.size());
  Timeline timeline;
  timeline.title = title;
  timeline.step = step;
  const std::vector<int> tracks = TracksOf(program, &timeline);
  std::vector<int> slices(spans.size(), kNone);  // By instruction.
  for (size_t i = 0; i < spans.size(); ++i) {
    const Op op = program.instructions[i].op;
    const Span& span = spans[i];
    if (IsPlaceholder(op) || !span.measured) continue;
    slices[i] = static_cast<int>(timeline.slices.size());
    timeline.slices.push_back({tracks[static_cast<size_t>(span.lane)], NameOf(op),
                               NameOfInstruction(program, layout, static_cast<int>(i)), span.start_seconds,
                               span.end_seconds - span.start_seconds,
                               ArgumentsOf(program, layout, span, static_cast<int>(i), step)});
    if (!IsBackgroundLane(span.lane)) timeline.seconds = std::max(timeline.seconds, span.end_seconds);
  }
  for (size_t i = 0; i < spans.size(); ++i) AddFlows(program, spans, slices, static_cast<int>(i), &timeline);
  return timeline;
}

void AddStep(const Program& program, const std::vector<Span>& spans, const v1::MemoryReport& memory,
             Timeline* timeline) {
  Timeline::Slice step;
  step.track = static_cast<int>(timeline->tracks.size());
  step.kind = "step";
  step.name = absl::StrCat("step ", timeline->step);
  step.seconds = timeline->seconds;
  timeline->tracks.push_back("step");
  timeline->slices.push_back(std::move(step));
  timeline->components = {"allocated", "reserved"};
  timeline->samples = {{0, {memory.allocated_bytes(), memory.reserved_bytes()}}};
  const auto is_whole = [](const Span& span) { return span.measured && !span.of_step_before; };
  if (!std::all_of(spans.begin(), spans.end(), is_whole)) return;
  timeline->components.push_back("arena in use");
  timeline->samples = ArenaSamples(program, spans);
  for (Timeline::Sample& sample : timeline->samples)
    sample.bytes.insert(sample.bytes.begin(), {memory.allocated_bytes(), memory.reserved_bytes()});
}

std::pair<int64_t, int64_t> UnixNanosOf(const Timeline& timeline) {
  double begin = 0, end = timeline.seconds;
  for (const Timeline::Slice& slice : timeline.slices) {
    begin = std::min(begin, slice.start);
    end = std::max(end, slice.start + slice.seconds);
  }
  return {timeline.begin_unix_nanos + std::llround(begin * 1e9),
          timeline.begin_unix_nanos + std::llround(end * 1e9)};
}

void AddActivities(const std::vector<DeviceActivity>& activities, Timeline* timeline) {
  FSDPD_CHECK(timeline->begin_unix_nanos != 0);
  const auto [begin, end] = UnixNanosOf(*timeline);
  const auto seconds = [&](int64_t nanos) {
    return static_cast<double>(nanos - timeline->begin_unix_nanos) * 1e-9;
  };
  struct Track {
    int number = 0;
    int64_t busy_until = 0;
  };
  std::map<uint32_t, std::vector<Track>> streams;
  for (const DeviceActivity& activity : activities) {
    if (activity.begin_unix_nanos < begin || activity.begin_unix_nanos >= end) continue;
    std::vector<Track>& tracks = streams[activity.stream];
    const auto is_free = [&](const Track& t) { return t.busy_until <= activity.begin_unix_nanos; };
    auto track = std::find_if(tracks.begin(), tracks.end(), is_free);
    if (track == tracks.end() && tracks.size() < kMostTracks) {
      const std::string beside = tracks.empty() ? "" : absl::StrCat(" (", tracks.size() + 1, ")");
      track = tracks.insert(track, {static_cast<int>(timeline->tracks.size())});
      timeline->tracks.push_back(absl::StrCat("GPU stream ", activity.stream, beside));
    } else if (track == tracks.end()) {
      track = std::min_element(tracks.begin(), tracks.end(),
                               [](const Track& a, const Track& b) { return a.busy_until < b.busy_until; });
    }
    const int64_t from = std::max(activity.begin_unix_nanos, track->busy_until);
    if (activity.end_unix_nanos <= from) continue;
    track->busy_until = activity.end_unix_nanos;
    Timeline::Slice& slice = timeline->slices.emplace_back();
    slice.track = track->number;
    slice.kind = activity.kind == DeviceActivity::Kind::kKernel ? "kernel" : "copy";
    slice.name = activity.name;
    slice.start = seconds(from);
    slice.seconds = seconds(activity.end_unix_nanos) - slice.start;
    if (activity.bytes > 0) slice.arguments.emplace_back("bytes", activity.bytes);
  }
}

void AddCounter(const std::string& name, const std::string& unit,
                const std::vector<std::pair<int64_t, double>>& values, Timeline* timeline) {
  const auto [begin, end] = UnixNanosOf(*timeline);
  Timeline::Counter counter = {name, unit, {}};
  for (const auto& [at, value] : values) {
    if (at > end) break;
    const double seconds = static_cast<double>(std::max(at, begin) - timeline->begin_unix_nanos) * 1e-9;
    if (at <= begin) counter.values.clear();
    counter.values.emplace_back(seconds, value);
  }
  if (!counter.values.empty()) timeline->counters.push_back(std::move(counter));
}

}  // namespace fsdpd
