// Text of jobs and nodes: tables, `describe` and summaries. Pure functions of API messages.
#pragma once

#include <absl/time/time.h>

#include <string>
#include <vector>

#include "client/text/progress_line.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

bool IsEnded(v1::JobState state);
std::string StateName(v1::JobState state);  // "running"

// The step that the job has reached. Between attempts, the step from which the next attempt resumes.
int64_t StepOf(const v1::Job& job);
int64_t WorldSizeOf(const v1::Job& job);  // The world size that the job requests.
// "20/300". Until an attempt has reported a step, 20 is the step from which it resumes.
std::string StepText(const v1::Job& job);

// Columns of a table of jobs. kWide includes LABELS.
enum class JobColumns { kDefault, kLabels, kWide };

// One line per job: "ID STATE STEP LOSS RANKS AGE REASON". kWide adds ATTEMPT, TOKENS/S, PEAK, NODES, SLOWEST
// and SUBMITTER. `width` 0: no truncation.
std::string JobTable(const std::vector<v1::Job>& jobs, absl::Time now, int width = 0,
                     JobColumns columns = JobColumns::kDefault);
// The rows of JobTable(), with the header first.
std::vector<std::string> JobRows(const std::vector<v1::Job>& jobs, absl::Time now, int width = 0,
                                 JobColumns columns = JobColumns::kDefault);
// "3 on node-1, 1.52x": the straggler, which is the rank with the longest compute time, if other ranks wait
// for it noticeably; "-" otherwise.
std::string SlowestText(const v1::Job& job);
// The coordinator's time, which ages of nodes are relative to, because its clock may differ from ours.
// Returns `here` for a response of an older release, which lacks it.
absl::Time CoordinatorTimeOf(const v1::ListNodesResponse& response, absl::Time here);
// `wide` adds ADDRESS and PREFLIGHT.
std::string NodeTable(const std::vector<v1::Node>& nodes, absl::Time now, int width = 0, bool wide = false);

// Text of `describe JOB`.
std::string DescribeJob(const v1::Job& job, absl::Time now);

// A line for each checkpoint and warning that `job` has and its earlier state `before` did not have.
std::vector<std::string> NewJobLines(const v1::Job& before, const v1::Job& job);

// Summary of an ended job. `history` has the steps of its last attempt that were received; may be empty.
std::string Summary(const v1::Job& job, const StepHistory& history);

}  // namespace fsdpd
