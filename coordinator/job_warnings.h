// What ranks warn of while a job runs (StepReport.warnings), kept with the job and told as its events: a log
// is read when something is wrong, and these jobs succeed.
//
// Pure. The revision grows with each that is kept, so that watchers see it.
#pragma once

#include <absl/time/time.h>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

constexpr int kMaxJobWarnings = 16;  // The first ones: ranks say each once an attempt.
constexpr int kMaxJobWarningBytes = 1024;

// Of the job's present attempt, told by its rank 0; what is known already is passed over, as a report may
// come twice, and each attempt warns anew. False: nothing is new.
bool TakeWarnings(const v1::StepReport& report, absl::Time now, v1::Job* job);

}  // namespace fsdpd
