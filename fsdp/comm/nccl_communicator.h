// GPU ranks: NCCL by its own API. Each instance has a communicator of its own, so that gathers and reductions
// do not wait for each other. Operations are enqueued on the calling thread's current stream and return; only
// Barrier() waits for the device, and asks NCCL for errors that came up behind an operation that had
// returned.
//
// Sums are in fp32. Their order is NCCL's (a fp32 wire, all-reduce), the same on every run, or that of ranks
// (a narrower wire).
//
// Abort() ends the kernels of this rank that wait for a peer, so their stream drains; what they were to write
// is undefined. Copy engines that wait for one it does not end (window.h). It does not reach the peers: NCCL
// has no message for it, and within a node no connection that would break. Each rank of an attempt is ended
// by its own agent, which calls Abort there.
//
// Destruction is collective within a node unless the communicator was aborted: NCCL's ranks write into each
// other's memory until all of them are done.
#pragma once

#include <memory>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

// UNIMPLEMENTED in a binary built without --config=cuda.
absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(const CommunicatorOptions& options,
                                                                   Store* store);

}  // namespace fsdpd
