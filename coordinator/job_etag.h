// What a job's revision is known by to who asks for something on condition that the job is as he saw it.
// Opaque to clients, and the same whoever shows the job.
#pragma once

#include <absl/strings/str_cat.h>

#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// A state that was put back from a backup counts on from an older revision: what else is in it makes two of
// one number seldom alike.
inline std::string EtagOf(const v1::Job& job) {
  return absl::StrCat(job.revision(), "-", job.event_count(), "-", job.attempt(), "-",
                      static_cast<int>(job.state()));
}

inline void AddEtag(v1::Job* job) { job->set_etag(EtagOf(*job)); }

}  // namespace fsdpd
