// Ownership of checkpoint directories: checkpoint.dir belongs to one job that has not ended. Checkpoints of a
// second job there would prevent the first from resuming, which would only be noticed at the next start. The
// directory of an ended job may be taken by another; once that job has saved later steps there, the ended job
// cannot be retried.
//
// Directories are compared as text. A symbolic link counts as another directory; ranks detect that case by
// the lock in the directory and by the owner of its checkpoints.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "base/spec_text/violation.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// checkpoint.dir in normal form ("/runs//7/./" is "/runs/7"); empty if the spec has none.
std::string DirectoryOf(const v1::JobSpec& spec);

// The violation of a spec whose directory belongs to `holder`, which has not ended.
Violation DirectoryIsTaken(const v1::Job& holder);

// Why an ended job may not be retried, given the jobs that have its directory in their specs (it may be one
// of them), and the fix; empty if none of them prevents it.
std::string WhyDirectoryIsLost(const v1::Job& ended, const std::vector<v1::Job>& sharing);

}  // namespace fsdpd
