// Tables of jobs, and the texts of their parts. Pure functions of API messages.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

std::string OrDash(std::string text);
// "3 m 05 s"; "-" for 0.
std::string AgeText(int64_t unix_nanos, absl::Time now);
// "2026-11-29 18:20:20 UTC (3 m 05 s ago)"; "-" for 0.
std::string TimeText(int64_t unix_nanos, absl::Time now);
// "team=vision,owner=ada"
std::string LabelText(const google::protobuf::RepeatedPtrField<v1::Label>& labels, const char* between);

bool IsEnded(v1::JobState state);
std::string StateName(v1::JobState state);  // "running"

// The step that the job has reached. Between attempts, the step from which the next attempt resumes.
int64_t StepOf(const v1::Job& job);
// The resolved spec. A job that an older coordinator stored has none, so defaults are filled in.
v1::JobSpec ResolvedSpecOf(const v1::Job& job);
// The spec as a user wrote it: of a package, only the path and 12 digits of the digest.
v1::JobSpec WithShortPackage(v1::JobSpec spec);
// "34 units, 8.0 B parameters"; "" if the model is not a package.
std::string PackageText(const v1::Model& model);
int64_t WorldSizeOf(const v1::Job& job);  // The world size that the job requests.
// 0: train.epochs is set, and no rank has opened the data yet.
int64_t TotalSteps(const v1::Job& job);
// "20/300", or "0/?". Until an attempt has reported a step, 20 is the step from which it resumes.
std::string StepText(const v1::Job& job);

// "1.25", or "1.25/3" with train.epochs: passes over the training data at StepOf(job). Empty if unknown.
std::string EpochText(const v1::Job& job);
// "2.1034 after step 200, best 2.0911 after step 150": the newest evaluation. Empty: none yet.
std::string ValidationText(const v1::Job& job);

// The newest step report of the job; null if no attempt has completed a step.
const v1::StepReport* NewestStep(const v1::Job& job);
// "2/4" if the job has fewer ranks than it was submitted with.
std::string RanksText(const v1::Job& job, const char* of);
// A stall takes precedence over the stored reason, and so does a failed checkpoint, because a failure would
// then lose more steps.
std::string ReasonText(const v1::Job& job, absl::Time now);
std::string FailedCheckpointText(const v1::SavedCheckpoint& failed);

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

}  // namespace fsdpd
