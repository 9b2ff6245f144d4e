// Names and limits of trace files in the directory of an attempt. Ranks write them, agents read them for
// clients, and validation and the coordinator reject requests beyond the limits.
#pragma once

#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>

namespace fsdpd {

// "trace_step_12_rank_3.json".
std::string TraceFileName(int64_t step, int rank);
// False for other names, including that of a trace being written.
bool ParseTraceFileName(absl::string_view name, int64_t* step, int* rank);

// "memory_step_12_rank_3.pickle": memory snapshot of the rank after the step.
std::string MemoryFileName(int64_t step, int rank);

// Per spec, and per request for a running job: users look at a few steps.
constexpr int kMaxTracedSteps = 16;

// Per rank and attempt, since they are not removed.
constexpr int kMaxTraceFiles = 256;

// A step with a hundred thousand instructions. Larger traces are not written.
constexpr int64_t kMaxTraceBytes = 64 << 20;

}  // namespace fsdpd
