#include "fsdp/plan/predict/timeline.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr double kMicrosPerSecond = 1e6;  // What the format counts in.

// Names are ours or the model's; what else there may be must not break the file.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return quoted + "\"";
}

std::string Label(const char* kind, size_t process, size_t track, const std::string& name) {
  return absl::StrFormat(R"({"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{"name":%s}})", kind, process,
                         track, Quoted(name));
}

// `first`: the time that is shown as 0.
void AppendEvents(const Timeline& timeline, size_t process, double first, std::vector<std::string>* events) {
  const auto micros = [&](double seconds) { return (seconds - first) * kMicrosPerSecond; };
  events->push_back(Label("process_name", process, 0, timeline.title));
  for (size_t t = 0; t < timeline.tracks.size(); ++t) {
    events->push_back(Label("thread_name", process, t, timeline.tracks[t]));
  }
  for (const Timeline::Slice& slice : timeline.slices) {
    events->push_back(absl::StrFormat(
        R"({"ph":"X","name":%s,"cat":%s,"pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f})", Quoted(slice.name),
        Quoted(slice.kind), process, slice.track, micros(slice.start), slice.seconds * kMicrosPerSecond));
  }
  for (size_t c = 0; c < timeline.components.size(); ++c) {
    int64_t last = -1;
    for (const Timeline::Sample& sample : timeline.samples) {
      if (sample.bytes[c] == last) continue;
      last = sample.bytes[c];
      events->push_back(absl::StrFormat(R"({"ph":"C","name":%s,"pid":%d,"ts":%.3f,"args":{"bytes":%d}})",
                                        Quoted(timeline.components[c]), process, micros(sample.start), last));
    }
  }
}

std::string NameOf(const v1::Plan::Instruction& instruction) {
  std::string name = instruction.op();
  if (!instruction.unit().empty()) absl::StrAppend(&name, " ", instruction.unit());
  if (instruction.micro_batch() >= 0) absl::StrAppend(&name, " mb ", instruction.micro_batch());
  return name;
}

}  // namespace

Timeline TimelineOf(const v1::Plan& plan) {
  const v1::Prediction& prediction = plan.prediction();
  const auto& spans = prediction.timeline().spans();
  FSDPD_CHECK(prediction.has_timeline() && spans.size() == plan.instructions_size());
  Timeline timeline;
  timeline.title = absl::StrCat(plan.resolved().name(), ": one step on one of ", plan.world(), " ranks, ",
                                prediction.profile().name(), ", predicted");
  timeline.tracks = {"compute", "gather", "reduce", "outer", "copy"};
  for (int n = 0; n < spans.size(); ++n) {
    const v1::Plan::Instruction& i = plan.instructions(n);
    if (spans[n].seconds() <= 0) continue;
    const auto track = std::find(timeline.tracks.begin(), timeline.tracks.end(), i.lane());
    FSDPD_CHECK(track != timeline.tracks.end());
    timeline.slices.push_back({static_cast<int>(track - timeline.tracks.begin()), i.op(), NameOf(i),
                               spans[n].start_seconds(), spans[n].seconds()});
  }
  const v1::Prediction::Timeline& memory = prediction.timeline();
  timeline.components.assign(memory.components().begin(), memory.components().end());
  for (const v1::Prediction::MemorySample& sample : memory.memory()) {
    timeline.samples.push_back({sample.start_seconds(), {sample.bytes().begin(), sample.bytes().end()}});
  }
  timeline.seconds = prediction.step_seconds();
  timeline.peak_bytes = plan.memory().peak_bytes();
  timeline.budget_bytes = plan.resolved().resources().memory_budget_bytes();
  return timeline;
}

// Slices of the step before would begin below 0, which Perfetto drops: the earliest is at 0.
std::string TraceJson(const std::vector<Timeline>& timelines) {
  double first = 0;
  for (const Timeline& timeline : timelines) {
    for (const Timeline::Slice& slice : timeline.slices) first = std::min(first, slice.start);
  }
  std::vector<std::string> events;
  for (size_t i = 0; i < timelines.size(); ++i) AppendEvents(timelines[i], i, first, &events);
  return absl::StrCat("{\"traceEvents\":[\n", absl::StrJoin(events, ",\n"), "\n]}\n");
}

}  // namespace fsdpd
