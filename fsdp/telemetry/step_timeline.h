// Trace timeline of a measured step (fsdp/plan/predict/timeline.h), drawn like a prediction but with measured
// times: one track per lane, one slice per instruction.
//
// Times of a rank are relative to the start of its own step, so ranks are aligned only up to the difference
// of their starts. All-gathers that started in the previous step have negative times. Pure.
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

// `spans`: one per instruction. Omits instructions that take no time (Release) or were not measured. A slice
// has the subject of its instruction, and what it waited for on another lane.
Timeline StepTimeline(const Program& program, const Layout& layout, const std::vector<Span>& spans,
                      int64_t step, const std::string& title);

// For a trace: the step as a slice on its own track, and the rank's memory. Arena usage is derived from the
// times of instructions, so it is omitted if the step's updates ran with another step.
void AddStep(const Program& program, const std::vector<Span>& spans, const v1::MemoryReport& memory,
             Timeline* timeline);

// For a trace: device activities. One track per stream, plus up to three more for concurrent activities on a
// stream; one that finds all of them busy is drawn from when a track becomes free. Activities that started
// outside of the timeline's own slices are omitted. REQUIRES: the timeline has a start time.
void AddActivities(const std::vector<DeviceActivity>& activities, Timeline* timeline);

// Adds a counter, on the host's clock; the last value before the timeline's start applies at its start.
void AddCounter(const std::string& name, const std::string& unit,
                const std::vector<std::pair<int64_t, double>>& values, Timeline* timeline);

// On the host's clock: the start of the first slice and the end of the last.
std::pair<int64_t, int64_t> UnixNanosOf(const Timeline& timeline);

// "Backward layer.3 mb 0": the display name of an instruction, without its lane.
std::string NameOfInstruction(const Program& program, const Layout& layout, int index);

}  // namespace fsdpd
