// A measured step as it is drawn beside its plan: what each lane ran when, and what the rank's memory held,
// by component (proto/fsdpd/v1/course.proto, which says what each is and what is measured only together). It
// owns the bounds of what is told of a step.
//
// Bytes of the arena are counted as Simulate() counts them (fsdp/plan/predict/simulate.h): a buffer while it
// is live, from the begin of the instruction that it is born in to the end of the one that it dies in. Here
// both were measured. A buffer whose last use ran with the next step's launch is live to the end.
//
// Pure, but for what is kept of a program: REQUIRES that program and layout outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/memory/step_peak.h"
#include "fsdp/plan/program/program.h"
#include "fsdp/telemetry/step_timing.h"
#include "proto/fsdpd/v1/course.pb.h"

namespace fsdpd {

// A step of 8 billion parameters in 8 micro-batches has some 1,500 runs; a picture has some 1,000 columns.
constexpr size_t kMaxCourseRuns = 4096;
constexpr size_t kMaxCourseSamples = 1024;

// What a rank's memory holds from its first step to its last, as allocated.
struct StandingBytes {
  int64_t main_params = 0;
  int64_t optimizer = 0;
  int64_t gradients = 0;  // Without what lies in the arena.
  int64_t arena = 0;
};

class StepCourses {
 public:
  // `whole_gradients`: reduce buffers are the gradients, as they are where nothing shards these.
  StepCourses(const Program& program, const Layout& layout, const StandingBytes& standing,
              bool whole_gradients);

  // `spans`: one per instruction. `held`: of the device, the arena with it; where nothing was, as without an
  // allocator that counts, nothing is said of memory.
  v1::StepCourse Of(int64_t step, const std::vector<Span>& spans, const HeldBytes& held) const;

 private:
  void AddRuns(const std::vector<Span>& spans, v1::StepCourse* course) const;
  void AddMemory(const std::vector<Span>& spans, const HeldBytes& held, v1::StepCourse* course) const;

  const Program* program_;
  const StandingBytes standing_;
  const bool whole_gradients_;
  std::vector<std::string> names_;  // Of the instructions.
};

}  // namespace fsdpd
