// Etag of a job, for requests that depend on the job being unchanged since it was read. Opaque to clients,
// and equal on all coordinators.
//
// It covers what users base decisions on: state, attempt and reason, a pause, an end, succeeded dependencies.
// Reports of a running job (steps, checkpoints, skipped steps, warnings) are excluded: otherwise no
// conditional request could succeed for a job that saves every minute. So are revision counters, because a
// state that was restored from a backup reuses numbers, and two different changes would have the same etag.
#pragma once

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <string>

#include "base/fnv1a.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

inline std::string EtagOf(const v1::Job& job) {
  const auto succeeded = std::count_if(job.after().begin(), job.after().end(),
                                       [](const v1::Job::After& after) { return after.succeeded(); });
  const std::string seen =
      absl::StrCat(job.pause().unix_nanos(), " ", job.pause().resumes_automatically() ? 1 : 0, " ",
                   job.end_unix_nanos(), " ", succeeded, " ", job.reason());
  return absl::StrCat(job.attempt(), "-", static_cast<int>(job.state()), "-", absl::Hex(Fnv1a(seen)));
}

inline void AddEtag(v1::Job* job) { job->set_etag(EtagOf(*job)); }

}  // namespace fsdpd
