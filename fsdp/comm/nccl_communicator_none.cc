// MakeNcclCommunicator for binaries built without --config=cuda.
#include "fsdp/comm/nccl_communicator.h"

namespace fsdpd {

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(const CommunicatorOptions& /*options*/,
                                                                   Store* /*store*/) {
  return absl::UnimplementedError("this binary is built for CPU; build it with --config=cuda for NCCL");
}

}  // namespace fsdpd
