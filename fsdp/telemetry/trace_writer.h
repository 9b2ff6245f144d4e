// A measured step as a timeline for people: Chrome's trace format, which Perfetto (ui.perfetto.dev) and
// chrome://tracing open. One process per rank, one track per lane, one slice per instruction.
//
// Each rank's times count from its own step's begin: what ranks did at the same moment is alike to within how
// far apart they began. Pure.
#pragma once

#include <string>
#include <vector>

#include "fsdp/telemetry/step_timing.h"

namespace fsdpd {

struct TraceEvent {
  LaneId lane = LaneId::kCompute;
  std::string name;  // "Backward layer.3 mb 0"
  double start_seconds = 0;
  double end_seconds = 0;
};
using Trace = std::vector<TraceEvent>;

// `spans`: one per instruction. Instructions that take no time (Release) are left out.
Trace TraceOf(const Program& program, const Layout& layout, const std::vector<Span>& spans);

std::string TraceJson(const std::vector<Trace>& ranks);

}  // namespace fsdpd
