// NcclCommunicator: GPU ranks, with NCCL's API. Each instance has its own NCCL communicator, so gathers and
// reductions do not serialize. Operations are enqueued on the calling thread's current stream; only Barrier()
// and Await() wait for the device, and poll NCCL for asynchronous errors.
//
// Sums are in fp32, in an order that NCCL chooses and repeats in every run (fp32 wire, all-reduce), or in
// rank order (narrower wire).
//
// Abort() stops this rank's kernels that wait for a peer, so its stream drains; their output is undefined. It
// does not stop copy engines that wait for a peer (window.h), and does not reach peers: NCCL has no message
// for it, and within a node there is no connection that would break. The agent of each rank of the attempt
// stops it, which calls Abort there.
//
// Destruction is collective within a node unless the communicator was aborted: NCCL ranks write into each
// other's memory until all are done.
#pragma once

#include <memory>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

// UNIMPLEMENTED in a binary built without --config=cuda.
absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(const CommunicatorOptions& options,
                                                                   Store* store);

}  // namespace fsdpd
