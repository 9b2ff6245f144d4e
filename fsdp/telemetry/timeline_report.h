// Step timeline for the web UI: a measured step that can be compared with its plan: what each lane ran when,
// and what the rank's memory held, by component (proto/fsdpd/v1/timeline.proto defines each component). Owns
// the limits on its size.
//
// Arena usage is counted like in Simulate() (fsdp/plan/predict/simulate.h), with measured times: a buffer is
// live from the start of the instruction that creates it to the end of its last use. A buffer whose last use
// ran with the next step's graph launch is live to the end.
//
// Pure, except that program and layout are referenced: REQUIRES that they outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/memory/step_peak.h"
#include "fsdp/plan/program/program.h"
#include "fsdp/telemetry/step_timing.h"
#include "proto/fsdpd/v1/timeline.pb.h"

namespace fsdpd {

// A step of an 8B model with 8 micro-batches has about 1,500 runs; a chart has about 1,000 columns.
constexpr size_t kMaxTimelineRuns = 4096;
constexpr size_t kMaxTimelineSamples = 1024;

// Memory that a rank holds for the whole run, as allocated.
struct PersistentBytes {
  int64_t main_params = 0;
  int64_t optimizer = 0;
  int64_t gradients = 0;  // Without gradients in the arena.
  int64_t arena = 0;
};

class TimelineReport {
 public:
  // `full_gradients`: reduce buffers are the gradients, which is the case if gradients are not sharded.
  TimelineReport(const Program& program, const Layout& layout, const PersistentBytes& persistent,
                 bool full_gradients);

  // `spans`: one per instruction. `held`: of the device, including the arena; if empty, as without an
  // instrumented allocator, memory is omitted.
  v1::StepTimeline Of(int64_t step, const std::vector<Span>& spans, const HeldBytes& held) const;

 private:
  void AddRuns(const std::vector<Span>& spans, v1::StepTimeline* timeline) const;
  void AddMemory(const std::vector<Span>& spans, const HeldBytes& held, v1::StepTimeline* timeline) const;

  const Program* program_;
  const PersistentBytes persistent_;
  const bool full_gradients_;
  std::vector<std::string> names_;  // Names of the instructions.
};

}  // namespace fsdpd
