#include "fsdp/plan/predict/timeline.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/json_quote.h"

namespace fsdpd {
namespace {

constexpr double kNanosPerSecond = 1e9;

// Framing of a TraceJson() file: before the events, between two, after the last.
constexpr char kHead[] = "{\"traceEvents\":[\n";
constexpr char kBetween[] = ",\n";
constexpr char kTail[] = "\n]";
constexpr char kBegan[] = ",\"beginUnixNanos\":";  // Host clock at time 0.
constexpr char kTime[] = "\"ts\":";                // Once per event.

// Trace time unit: microseconds with nanosecond digits. Start and end are both rounded (rather than start and
// duration), so that adjacent slices do not overlap. REQUIRES: not negative.
std::string Micros(int64_t nanos) { return absl::StrFormat("%d.%03d", nanos / 1000, nanos % 1000); }

int64_t NanosOf(double seconds) { return std::llround(seconds * kNanosPerSecond); }

std::string Label(const char* kind, size_t process, size_t track, const std::string& name) {
  return absl::StrFormat(R"({"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{"name":%s}})", kind, process,
                         track, JsonQuoted(name));
}

std::string TextOf(const Timeline::Arguments& arguments) {
  if (arguments.empty()) return "";
  return absl::StrCat(
      ",\"args\":{",
      absl::StrJoin(arguments, ",",
                    [](std::string* text, const auto& argument) {
                      const auto* number = std::get_if<int64_t>(&argument.second);
                      absl::StrAppend(text, JsonQuoted(argument.first), ":",
                                      number != nullptr ? absl::StrCat(*number)
                                                        : JsonQuoted(std::get<std::string>(argument.second)));
                    }),
      "}");
}

// A flow's ends bind to the slice that started at that time. Ids are 64-bit hexadecimal and unique across the
// processes and steps of a merged file.
void AppendFlows(const Timeline& timeline, size_t process, int64_t first, std::vector<std::string>* events) {
  for (size_t n = 0; n < timeline.flows.size(); ++n) {
    const auto end = [&](const char* phase, int slice) {
      const Timeline::Slice& at = timeline.slices[slice];
      events->push_back(absl::StrFormat(
          R"({"ph":%s,"name":"waits for","cat":"dependency","id":"0x%04x%06x%06x","pid":%d,"tid":%d,"ts":%s})",
          phase, process & 0xffff, timeline.step & 0xffffff, n & 0xffffff, process, at.track,
          Micros(NanosOf(at.start) - first)));
    };
    end(R"("s")", timeline.flows[n].from);
    end(R"("f","bp":"e")", timeline.flows[n].to);
  }
}

// `first`: the time shown as 0.
void AppendEvents(const Timeline& timeline, size_t process, int64_t first, std::vector<std::string>* events) {
  events->push_back(Label("process_name", process, 0, timeline.title));
  for (size_t t = 0; t < timeline.tracks.size(); ++t) {
    events->push_back(Label("thread_name", process, t, timeline.tracks[t]));
  }
  for (const Timeline::Slice& slice : timeline.slices) {
    const int64_t begin = NanosOf(slice.start), end = NanosOf(slice.start + slice.seconds);
    events->push_back(absl::StrFormat(R"({"ph":"X","name":%s,"cat":%s,"pid":%d,"tid":%d,"ts":%s,"dur":%s%s})",
                                      JsonQuoted(slice.name), JsonQuoted(slice.kind), process, slice.track,
                                      Micros(begin - first), Micros(end - begin), TextOf(slice.arguments)));
  }
  AppendFlows(timeline, process, first, events);
  for (size_t c = 0; c < timeline.components.size(); ++c) {
    int64_t last = -1;
    for (const Timeline::Sample& sample : timeline.samples) {
      if (sample.bytes[c] == last) continue;
      last = sample.bytes[c];
      events->push_back(absl::StrFormat(R"({"ph":"C","name":%s,"pid":%d,"ts":%s,"args":{"bytes":%d}})",
                                        JsonQuoted(timeline.components[c]), process,
                                        Micros(NanosOf(sample.start) - first), last));
    }
  }
  for (const Timeline::Counter& counter : timeline.counters) {
    for (const auto& [at, value] : counter.values) {
      events->push_back(absl::StrFormat(R"({"ph":"C","name":%s,"pid":%d,"ts":%s,"args":{%s:%.6g}})",
                                        JsonQuoted(counter.name), process, Micros(NanosOf(at) - first),
                                        JsonQuoted(counter.unit), value));
    }
  }
}

std::string FileOf(const std::vector<std::string>& events, int64_t begin_unix_nanos) {
  const std::string began = begin_unix_nanos == 0 ? "" : absl::StrCat(kBegan, begin_unix_nanos);
  return absl::StrCat(kHead, absl::StrJoin(events, kBetween), kTail, began, "}\n");
}

struct TraceFile {
  std::vector<absl::string_view> events;
  int64_t begin_unix_nanos = 0;
};

absl::StatusOr<TraceFile> Parted(absl::string_view file) {
  TraceFile parts;
  const absl::Status bad = absl::DataLossError("is not a complete trace");
  const size_t end = file.rfind(kTail);
  if (!absl::ConsumePrefix(&file, kHead) || end == absl::string_view::npos || end < sizeof(kHead) - 1)
    return bad;
  absl::string_view tail = file.substr(end - (sizeof(kHead) - 1) + sizeof(kTail) - 1);
  if (!absl::ConsumeSuffix(&tail, "}\n")) return bad;
  if (absl::ConsumePrefix(&tail, kBegan) ? !absl::SimpleAtoi(tail, &parts.begin_unix_nanos) : !tail.empty())
    return bad;
  file = file.substr(0, end - (sizeof(kHead) - 1));
  parts.events = absl::StrSplit(file, kBetween);
  return parts;
}

// Shifts the time of an event. Labels have no time.
absl::StatusOr<std::string> Moved(absl::string_view event, int64_t nanos) {
  const size_t at = event.find(kTime);
  if (at == absl::string_view::npos || nanos == 0) return std::string(event);
  const size_t begin = at + sizeof(kTime) - 1, end = event.find_first_of(",}", begin);
  const absl::string_view number = event.substr(begin, end - begin);
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(number, '.');
  int64_t micros = 0, rest = 0;
  if (end == absl::string_view::npos || parts.second.size() != 3 || !absl::SimpleAtoi(parts.first, &micros) ||
      !absl::SimpleAtoi(parts.second, &rest) || micros < 0)
    return absl::DataLossError("has an event without its time");
  return absl::StrCat(event.substr(0, begin), Micros(micros * 1000 + rest + nanos), event.substr(end));
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
  timeline.title = absl::StrCat(plan.resolved().name(), ": one step on one of ", plan.world_size(),
                                " ranks, ", prediction.profile().name(), ", predicted");
  timeline.tracks = {"compute", "gather", "reduce", "outer", "copy"};
  for (int n = 0; n < spans.size(); ++n) {
    const v1::Plan::Instruction& i = plan.instructions(n);
    if (spans[n].seconds() <= 0) continue;
    auto track = std::find(timeline.tracks.begin(), timeline.tracks.end(), i.lane());
    if (track == timeline.tracks.end()) track = timeline.tracks.insert(track, i.lane());  // Added lane.
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

// Slices of the previous step would have negative times, which Perfetto drops, so the earliest one is at 0.
std::string TraceJson(const std::vector<Timeline>& timelines, int first_process) {
  int64_t first = 0;
  for (const Timeline& timeline : timelines) {
    for (const Timeline::Slice& slice : timeline.slices) first = std::min(first, NanosOf(slice.start));
    for (const Timeline::Counter& counter : timeline.counters) {
      if (!counter.values.empty()) first = std::min(first, NanosOf(counter.values[0].first));
    }
  }
  std::vector<std::string> events;
  for (size_t i = 0; i < timelines.size(); ++i) AppendEvents(timelines[i], first_process + i, first, &events);
  const int64_t began = timelines.empty() ? 0 : timelines[0].begin_unix_nanos;
  return FileOf(events, began == 0 ? 0 : began + first);
}

absl::StatusOr<std::string> JoinedTrace(const std::vector<std::string>& files) {
  std::vector<TraceFile> parted;
  int64_t first = 0;
  for (const std::string& file : files) {
    FSDPD_ASSIGN_OR_RETURN(TraceFile parts, Parted(file));
    const int64_t began = parts.begin_unix_nanos;
    if (began != 0) first = first == 0 ? began : std::min(first, began);
    parted.push_back(std::move(parts));
  }
  std::vector<std::string> events;
  for (const TraceFile& parts : parted) {
    const int64_t later = parts.begin_unix_nanos == 0 ? 0 : parts.begin_unix_nanos - first;
    for (const absl::string_view event : parts.events) {
      FSDPD_ASSIGN_OR_RETURN(std::string moved, Moved(event, later));
      events.push_back(std::move(moved));
    }
  }
  return FileOf(events, first);
}

}  // namespace fsdpd
