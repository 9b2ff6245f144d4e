// Whose checkpoint.dir a directory is: a job's that has not ended, and that job's alone. What another saved
// there would keep it from going on, and nobody would see that before it is tried. Of jobs that have ended
// any other may take the directory; one that did keeps those from being tried again as soon as it has saved
// there what is later than what they would go on from.
//
// Directories are compared as text: a link to one is another, which the ranks find out by its lock and by
// whose checkpoints lie there.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "base/violation.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// checkpoint.dir without what is no difference ("/runs//7/./"); empty where the spec has none.
std::string DirectoryOf(const v1::JobSpec& spec);

// The fault of a spec whose directory `holder` has, which has not ended.
Violation DirectoryIsTaken(const v1::Job& holder);

// Why an ended job may not be tried again, by the jobs that have its directory in their specs (itself may be
// among them), and what would help; empty where none of them is in its way.
std::string WhyDirectoryIsLost(const v1::Job& ended, const std::vector<v1::Job>& sharing);

}  // namespace fsdpd
