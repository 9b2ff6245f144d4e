// Jobs and nodes as people read them: pure functions from the API's messages to text.
#pragma once

#include <absl/time/time.h>

#include <string>
#include <vector>

#include "client/progress_line.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

bool IsEnded(v1::JobState state);
std::string StateName(v1::JobState state);  // "running"

// The step that the job has reached, as far as it would not be lost.
int64_t StepOf(const v1::Job& job);
int64_t WorldOf(const v1::Job& job);  // Ranks that it asks for.
// "20/300": until an attempt has reported a step, the first is the one that it goes on after.
std::string StepText(const v1::Job& job);

// Which a table of jobs has beside the usual ones; kWide has LABELS too.
enum class JobColumns { kUsual, kLabels, kWide };

// One line per job: "ID STATE STEP LOSS RANKS AGE REASON"; kWide: ATTEMPT, TOKENS/S, PEAK, NODES, SLOWEST and
// SUBMITTER too. `width` 0: never cut.
std::string JobTable(const std::vector<v1::Job>& jobs, absl::Time now, int width = 0,
                     JobColumns columns = JobColumns::kUsual);
// The same, the header and each job by itself.
std::vector<std::string> JobRows(const std::vector<v1::Job>& jobs, absl::Time now, int width = 0,
                                 JobColumns columns = JobColumns::kUsual);
// "3 on node-1, 1.52x": the rank that computes longest, where others notably wait for it; "-" otherwise.
std::string SlowestText(const v1::Job& job);
// The coordinator's date, which ages of nodes are relative to; `here` of an older release's answer. Clocks of
// coordinator and client may be an hour apart.
absl::Time DateOf(const v1::ListNodesResponse& response, absl::Time here);
// `wide`: ADDRESS and PREFLIGHT too.
std::string NodeTable(const std::vector<v1::Node>& nodes, absl::Time now, int width = 0, bool wide = false);

// Everything that is known of a job.
std::string DescribeJob(const v1::Job& job, absl::Time now);

// What is new of a job's checkpoints and warnings since `before`, an earlier state of it: a line each, for a
// follower.
std::vector<std::string> JobNews(const v1::Job& before, const v1::Job& job);

// How an ended job went. `history` holds the steps that were seen of its last attempt; may be empty.
std::string Summary(const v1::Job& job, const StepHistory& history);

}  // namespace fsdpd
