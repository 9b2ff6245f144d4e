// Log output of a rank for users: the resolved configuration as one aligned table at the start, and one line
// per step with fields in fixed columns. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "fsdp/plan/plan.h"
#include "proto/fsdpd/v1/rank.pb.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

// One row per line, with aligned values.
std::vector<std::string> ConfigTable(const Plan& plan, const v1::RankLaunch& launch);

// "step    12/200  loss 3.1416  norm 0.97  lr 1.00e-03   0.250 s    8192 tok/s  overlap  97%  peak 1.2 GiB";
// with fp16 followed by the loss scale, and by "skipped" with the reason for a skipped step.
std::string StepLine(const v1::StepReport& report, int64_t steps);

// "eval    12/200  loss 3.2719  over 65536 tokens  1.204 s". REQUIRES: report.has_evaluation().
std::string EvaluationLine(const v1::StepReport& report, int64_t steps);

// "resuming after step 200 from /runs/7/iter_0000200, read in 1.2 s", after a line for each skipped
// checkpoint.
std::vector<std::string> RestoredLines(const v1::RestoredCheckpoint& restored);

// "save   200/1000  1.20 GiB in 3 s, training waited 0 ms for it  /runs/7/iter_0000200", or the error.
std::string SavedLine(const v1::SavedCheckpoint& saved, int64_t steps);

// "trace  200/1000  120 KiB  /var/fsdpd/7/attempt-1/trace_step_200_rank_0.json", or the error, and "memory
// 200/1000  ..." for a memory snapshot.
std::vector<std::string> TracedLines(const v1::StepTraceResult& traced, int64_t steps);

// "memory 200/1000  peak 1.2 GiB in Backward layer.3 mb 0: 0.3 GiB (33%) above the median of the steps
// before, 0.1 GiB (9%) above the plan". REQUIRES: report.memory().has_spike().
std::string SpikeLine(const v1::StepReport& report, int64_t steps);

}  // namespace fsdpd
