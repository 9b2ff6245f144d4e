// Warnings of ranks while a job runs (StepReport.warnings), retained in the job and shown as its events:
// users read logs only after a failure, and these jobs succeed.
//
// Pure. Each retained warning increments the revision, so that watchers see it.
#pragma once

#include <absl/time/time.h>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

constexpr int kMaxJobWarnings = 16;  // The first ones: ranks report each warning once per attempt.
constexpr int kMaxJobWarningBytes = 1024;

// Adds warnings of rank 0 of the job's current attempt. Known warnings are ignored, because a report may be
// repeated and each attempt warns again. Returns false if none is new.
bool TakeWarnings(const v1::StepReport& report, absl::Time now, v1::Job* job);

}  // namespace fsdpd
