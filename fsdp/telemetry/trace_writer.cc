#include "fsdp/telemetry/trace_writer.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr double kMicrosPerSecond = 1e6;  // What the format counts in.

// Names are ours or the model's: letters, digits, dots and spaces. What else there may be must not break the
// file.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return quoted + "\"";
}

// "#12 Backward layer.3 mb 0 on compute after #9" without what the track and the order say.
std::string NameOfInstruction(const Program& program, const Layout& layout, int index) {
  std::string text = Describe(program, layout, index);
  const std::string lane = absl::StrCat(" on ", NameOf(program.instructions[index].lane));
  text.resize(std::min(text.size(), text.rfind(lane)));
  return text.substr(text.find(' ') + 1);
}

std::string Label(const char* kind, int rank, int lane, const std::string& name) {
  return absl::StrFormat(R"({"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{"name":%s}})", kind, rank, lane,
                         Quoted(name));
}

std::string Slice(const TraceEvent& event, int rank) {
  return absl::StrFormat(R"({"ph":"X","name":%s,"cat":"%s","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f})",
                         Quoted(event.name), NameOf(event.lane), rank, static_cast<int>(event.lane),
                         event.start_seconds * kMicrosPerSecond,
                         (event.end_seconds - event.start_seconds) * kMicrosPerSecond);
}

}  // namespace

Trace TraceOf(const Program& program, const Layout& layout, const std::vector<Span>& spans) {
  FSDPD_CHECK(spans.size() == program.instructions.size());
  Trace trace;
  for (size_t i = 0; i < spans.size(); ++i) {
    if (program.instructions[i].op == Op::kRelease) continue;
    trace.push_back({spans[i].lane, NameOfInstruction(program, layout, static_cast<int>(i)),
                     spans[i].start_seconds, spans[i].end_seconds});
  }
  return trace;
}

std::string TraceJson(const std::vector<Trace>& ranks) {
  std::vector<std::string> events;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto rank = static_cast<int>(r);
    events.push_back(Label("process_name", rank, 0, absl::StrCat("rank ", rank)));
    for (int lane = 0; lane < kLanes; ++lane) {
      events.push_back(Label("thread_name", rank, lane, NameOf(static_cast<LaneId>(lane))));
    }
    for (const TraceEvent& event : ranks[r]) events.push_back(Slice(event, rank));
  }
  return absl::StrCat("{\"traceEvents\":[\n", absl::StrJoin(events, ",\n"), "\n]}\n");
}

}  // namespace fsdpd
