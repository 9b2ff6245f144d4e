#include "client/text/timeline_text.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/text.h"
#include "client/text/plan_text.h"
#include "client/text/text_table.h"

namespace fsdpd {
namespace {

using Run = v1::StepTimeline::Run;
using Sample = v1::StepTimeline::MemorySample;

constexpr size_t kMaxRunsPerLane = 3;

struct LaneRuns {
  std::string lane;
  double seconds = 0;
  std::vector<const Run*> runs = {};
};

// Groups runs by lane, in the order in which lanes first ran an instruction.
std::vector<LaneRuns> ByLane(const v1::StepTimeline& timeline) {
  std::vector<LaneRuns> lanes;
  for (const Run& run : timeline.runs()) {
    auto lane =
        std::find_if(lanes.begin(), lanes.end(), [&](const LaneRuns& l) { return l.lane == run.lane(); });
    if (lane == lanes.end()) lane = lanes.insert(lane, {run.lane()});
    lane->seconds += run.seconds();
    lane->runs.push_back(&run);
  }
  return lanes;
}

std::string LanesText(const v1::StepTimeline& timeline) {
  TextTable table({"LANE", "RUNS", "BUSY", "LONGEST", "FROM", "TIME"});
  for (LaneRuns& lane : ByLane(timeline)) {
    const size_t shown = std::min(kMaxRunsPerLane, lane.runs.size());
    std::stable_sort(lane.runs.begin(), lane.runs.end(),
                     [](const Run* a, const Run* b) { return a->seconds() > b->seconds(); });
    for (size_t i = 0; i < shown; ++i) {
      const Run& run = *lane.runs[i];
      const bool first = i == 0;
      table.Add({first ? OneLine(lane.lane) : "", first ? absl::StrCat(lane.runs.size()) : "",
                 first ? Milliseconds(lane.seconds) : "", OneLine(run.instruction()),
                 Milliseconds(run.start_seconds()), Milliseconds(run.seconds())});
    }
  }
  std::string text = table.Render();
  if (timeline.runs_omitted() > 0)
    absl::StrAppend(&text, timeline.runs_omitted(), " shorter runs are omitted\n");
  return text;
}

int64_t SumOf(const Sample& sample) {
  return std::accumulate(sample.bytes().begin(), sample.bytes().end(), int64_t{0});
}

std::string MemoryText(const v1::StepTimeline& timeline) {
  if (timeline.memory().empty()) return "\nmemory was not measured\n";
  const Sample& highest =
      *std::max_element(timeline.memory().begin(), timeline.memory().end(),
                        [](const Sample& a, const Sample& b) { return SumOf(a) < SumOf(b); });
  TextTable table({"COMPONENT", "BYTES"});
  for (int i = 0; i < std::min(timeline.components_size(), highest.bytes_size()); ++i) {
    if (highest.bytes(i) > 0) table.Add({OneLine(timeline.components(i)), HumanBytes(highest.bytes(i))});
  }
  table.Add({"allocated", HumanBytes(SumOf(highest))});
  return absl::StrCat("\npeak memory, from ", Milliseconds(highest.start_seconds()), ":\n", table.Render(2));
}

}  // namespace

std::string StepTimelineText(const v1::GetStepTimelineResponse& response) {
  const v1::StepTimeline& timeline = response.timeline();
  return absl::StrCat("step ", timeline.step(), " of attempt ", response.attempt(), ": ",
                      Milliseconds(timeline.step_seconds()), "\n\n", LanesText(timeline),
                      MemoryText(timeline));
}

}  // namespace fsdpd
