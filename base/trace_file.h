// Traces of steps as files: what they are called in an attempt's directory on its rank's node, and how many
// and how large they may be. Ranks write them, agents read them for who asks, and rules and the coordinator
// refuse what would be more.
#pragma once

#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>

namespace fsdpd {

// "trace_step_12_rank_3.json".
std::string TraceFileName(int64_t step, int rank);
// False: it is the name of something else, also of a trace that is being written.
bool ParseTraceFileName(absl::string_view name, int64_t* step, int* rank);

// "memory_step_12_rank_3.pickle": what the rank's memory held after the step.
std::string MemoryFileName(int64_t step, int rank);

// Of one spec, and of one ask of a running job: who looks at a trace looks at a few steps.
constexpr int kMaxTracedSteps = 16;

// Of a rank and attempt, whoever asked: nobody removes them.
constexpr int kMaxTraceFiles = 256;

// A step of a hundred thousand instructions. One that would be larger is not written.
constexpr int64_t kMaxTraceBytes = 64 << 20;

}  // namespace fsdpd
