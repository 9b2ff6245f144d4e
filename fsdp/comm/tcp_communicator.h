// CPU ranks in processes, over TCP (tcp_group.h). Gathers and reductions are direct exchanges between each
// two ranks, from and into the caller's memory. What is reduced is summed on the receiver in rank order
// (ordered_sum.h), so a sum has the same bits on any number of runs, as all-reduce or as reduce-scatter, and
// as the local communicator's. fp32 is received kMaxTcpReceivedBytes at a time, into memory that the
// communicator keeps. Connections per rank grow with the group: meant for tens of ranks, not thousands.
//
// A peer whose process ends closes its connections; the operation that waits for it fails then, and this rank
// closes its own connections in turn, so that the whole group learns of it without a timeout. End a group
// with Barrier(): a rank that leaves may otherwise take the last bytes it sent with it.
#pragma once

#include <memory>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

absl::StatusOr<std::unique_ptr<Communicator>> MakeTcpCommunicator(const CommunicatorOptions& options,
                                                                  Store* store);

}  // namespace fsdpd
