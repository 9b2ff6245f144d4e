// A measured step as a timeline for people (fsdp/plan/predict/timeline.h): what a prediction is drawn like,
// with the times that were measured. A track per lane, a slice per instruction.
//
// A rank's times count from its own step's begin: what ranks did at the same moment is alike to within how
// far apart they began. Gathers that began in the step before have times below 0. Pure.
#pragma once

#include <string>
#include <vector>

#include "fsdp/plan/predict/timeline.h"
#include "fsdp/telemetry/step_timing.h"

namespace fsdpd {

// `spans`: one per instruction. Instructions that take no time (Release) are left out.
Timeline StepTimeline(const Program& program, const Layout& layout, const std::vector<Span>& spans,
                      const std::string& title);

// "Backward layer.3 mb 0": an instruction as people know it who see its lane and its place among others.
std::string NameOfInstruction(const Program& program, const Layout& layout, int index);

}  // namespace fsdpd
