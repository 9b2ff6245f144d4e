#include "fsdp/comm/make_communicator.h"

#include "base/check.h"
#include "fsdp/comm/nccl_communicator.h"
#include "fsdp/comm/tcp_communicator.h"

namespace fsdpd {

absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(const CommunicatorOptions& options,
                                                               Store* store) {
  FSDPD_CHECK(options.size > 0 && options.rank >= 0 && options.rank < options.size);
  if (options.device == DeviceKind::kCuda) return MakeNcclCommunicator(options, store);
  return MakeTcpCommunicator(options, store);
}

}  // namespace fsdpd
