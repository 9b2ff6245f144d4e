// A measured step as a timeline for people (fsdp/plan/predict/timeline.h): what a prediction is drawn like,
// with the times that were measured. A track per lane, a slice per instruction.
//
// A rank's times count from its own step's begin: what ranks did at the same moment is alike to within how
// far apart they began. Gathers that began in the step before have times below 0. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/plan/predict/timeline.h"
#include "fsdp/telemetry/kernel_recorder.h"
#include "fsdp/telemetry/step_timing.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

// `spans`: one per instruction. Instructions that take no time (Release) are left out, and those that were
// not measured. A slice says what its instruction is of, and what it waited for on another lane.
Timeline StepTimeline(const Program& program, const Layout& layout, const std::vector<Span>& spans,
                      int64_t step, const std::string& title);

// For a trace: the step as a slice on a track of its own, and what the rank's memory holds. How much of the
// arena is in use follows from when instructions ran, so it is not shown of a step whose updates ran with
// another one.
void AddStep(const Program& program, const std::vector<Span>& spans, const v1::MemoryReport& memory,
             Timeline* timeline);

// For a trace: what the device itself says. A track for each of its streams, and up to three more for what
// runs beside others there; what finds all of them busy is drawn from when one is free. Of what began outside
// of the timeline's own slices nothing is shown. REQUIRES: the timeline knows when it began.
void AddActivities(const std::vector<DeviceActivity>& activities, Timeline* timeline);

// Of one counter, by the host's clock; the last value before the timeline holds at its begin.
void AddCounter(const std::string& name, const std::string& unit,
                const std::vector<std::pair<int64_t, double>>& values, Timeline* timeline);

// By the host's clock: the first slice's begin and the last one's end.
std::pair<int64_t, int64_t> UnixNanosOf(const Timeline& timeline);

// "Backward layer.3 mb 0": an instruction as people know it who see its lane and its place among others.
std::string NameOfInstruction(const Program& program, const Layout& layout, int index);

}  // namespace fsdpd
