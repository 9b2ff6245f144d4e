// GPU ranks: NCCL by its own API. Each instance has a communicator of its own, so that gathers and reductions
// do not wait for each other. Operations are enqueued on the calling thread's current stream and return; only
// Barrier() waits for the device, and asks NCCL for errors that came up behind an operation that had
// returned.
//
// Abort() ends kernels that wait for a peer, so a stream that holds one drains; results written by them are
// undefined. UNIMPLEMENTED in a binary built without --config=cuda.
#pragma once

#include <memory>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(const CommunicatorOptions& options,
                                                                   Store* store);

}  // namespace fsdpd
