// Ranks as threads of one process: a rank publishes its buffers, all meet, and each reads what it needs from
// the others' memory. The whole engine runs on it in tests; sums are in rank order (ordered_sum.h).
//
// A rank whose communicator is destroyed has left: operations that need it fail from then on. Ranks that call
// different operations, or different counts, all get FAILED_PRECONDITION that names both.
#pragma once

#include <memory>
#include <vector>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

// One communicator per rank, to be used by one thread each. They may be destroyed in any order.
std::vector<std::unique_ptr<Communicator>> MakeLocalGroup(int size);

}  // namespace fsdpd
