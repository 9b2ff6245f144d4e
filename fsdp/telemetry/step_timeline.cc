#include "fsdp/telemetry/step_timeline.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "base/check.h"

namespace fsdpd {

// "#12 Backward layer.3 mb 0 on compute after #9" without what the lane and the order say.
std::string NameOfInstruction(const Program& program, const Layout& layout, int index) {
  std::string text = Describe(program, layout, index);
  const std::string lane = absl::StrCat(" on ", NameOf(program.instructions[index].lane));
  text.resize(std::min(text.size(), text.rfind(lane)));
  return text.substr(text.find(' ') + 1);
}

Timeline StepTimeline(const Program& program, const Layout& layout, const std::vector<Span>& spans,
                      const std::string& title) {
  FSDPD_CHECK(spans.size() == program.instructions.size());
  Timeline timeline;
  timeline.title = title;
  for (int lane = 0; lane < kLanes; ++lane) timeline.tracks.push_back(NameOf(static_cast<LaneId>(lane)));
  for (size_t i = 0; i < spans.size(); ++i) {
    const Op op = program.instructions[i].op;
    if (op == Op::kRelease) continue;
    const Span& span = spans[i];
    timeline.slices.push_back({static_cast<int>(span.lane), NameOf(op),
                               NameOfInstruction(program, layout, static_cast<int>(i)), span.start_seconds,
                               span.end_seconds - span.start_seconds});
    // Copies run beside the next step.
    if (span.lane != LaneId::kCopy) timeline.seconds = std::max(timeline.seconds, span.end_seconds);
  }
  return timeline;
}

}  // namespace fsdpd
