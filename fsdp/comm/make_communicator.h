// Choice of a communicator by device: TCP on CPU, NCCL on CUDA.
#pragma once

#include <absl/status/statusor.h>

#include <memory>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

// Blocks until all ranks have called it. DEADLINE_EXCEEDED if a rank did not arrive, UNAVAILABLE if one could
// not be reached. `store` must outlive the communicator. UNIMPLEMENTED for CUDA in a binary built without
// --config=cuda.
absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(const CommunicatorOptions& options,
                                                               Store* store);

}  // namespace fsdpd
