// TcpCommunicator: CPU ranks in processes, over TCP (tcp_group.h). Gathers and reductions are direct
// exchanges between each pair of ranks, from and into the caller's memory. The receiver sums in rank order
// (ordered_sum.h), so sums are bit-identical between runs, between all-reduce and reduce-scatter, and to the
// local communicator. fp32 is received in parts of kMaxTcpReceivedBytes, into a buffer that the communicator
// keeps. The number of connections per rank grows with the group: meant for tens of ranks, not thousands.
//
// When a peer exits, its connections close and the operation that waits for it fails. This rank then closes
// its own connections, so the whole group fails without a timeout. End a group with Barrier(): otherwise a
// rank that exits may discard the last bytes it sent.
#pragma once

#include <memory>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

absl::StatusOr<std::unique_ptr<Communicator>> MakeTcpCommunicator(const CommunicatorOptions& options,
                                                                  Store* store);

}  // namespace fsdpd
