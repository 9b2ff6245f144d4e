// What a job is known by to who asks for something on condition that the job is as he saw it. Opaque to
// clients, and the same whoever shows the job.
//
// It is of what people decide by: state, attempt and reason, a pause, an end, the jobs it waits for. What a
// running job reports (steps, checkpoints, skipped steps, warnings) is none of it: of one that saves every
// minute nobody could ask anything else. Nor are numbers that count changes, so that a state that was put
// back from a backup, which counts on from an older one, has no etag of another change.
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
  const std::string seen = absl::StrCat(job.pause().unix_nanos(), " ", job.pause().resumes() ? 1 : 0, " ",
                                        job.end_unix_nanos(), " ", succeeded, " ", job.reason());
  return absl::StrCat(job.attempt(), "-", static_cast<int>(job.state()), "-", absl::Hex(Fnv1a(seen)));
}

inline void AddEtag(v1::Job* job) { job->set_etag(EtagOf(*job)); }

}  // namespace fsdpd
