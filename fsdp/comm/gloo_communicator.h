// CPU ranks in processes, over TCP: LibTorch's Gloo. Each operation moves what it must and sums in rank order
// on the receiver (ordered_sum.h), rather than by Gloo's ring: an all-to-all sends half the bytes of the
// all-reduce that LibTorch's Gloo reduce-scatter is made of, and the sum has the same bits on any number of
// runs, as all-reduce or as reduce-scatter, and as the local communicator's.
//
// A peer whose process ends closes its connections; the operation that waits for it fails then, and this rank
// closes its own connections in turn, so that the whole group learns of it without a timeout. End a group
// with Barrier(): a rank that leaves may otherwise take the last bytes it sent with it. The first group makes
// the process ignore SIGPIPE, which Gloo's writes to a lost peer would otherwise end it by.
#pragma once

#include <memory>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

absl::StatusOr<std::unique_ptr<Communicator>> MakeGlooCommunicator(const CommunicatorOptions& options,
                                                                   Store* store);

}  // namespace fsdpd
