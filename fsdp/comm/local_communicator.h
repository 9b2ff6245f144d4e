// LocalCommunicator: ranks as threads of one process. Each rank publishes its buffers, all synchronize, and
// each reads from the others' memory. Tests run the whole engine on it; sums are in rank order
// (ordered_sum.h).
//
// Destroying a communicator makes operations that need its rank fail. If ranks call different operations, or
// with different counts, all get FAILED_PRECONDITION that names both.
#pragma once

#include <memory>
#include <vector>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

// One communicator per rank, each used by one thread. May be destroyed in any order.
std::vector<std::unique_ptr<Communicator>> MakeLocalGroup(int size);

}  // namespace fsdpd
