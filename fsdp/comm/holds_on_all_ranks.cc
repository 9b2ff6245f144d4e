#include "fsdp/comm/holds_on_all_ranks.h"

#include "base/check.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {

absl::StatusOr<bool> HoldsOnAllRanks(Communicator* communicator, bool here, const at::Tensor& token) {
  bool all = false;
  FSDPD_RETURN_IF_ERROR(CatchTorch([&]() -> absl::Status {
    token.fill_(here ? 0 : 1);
    FSDPD_RETURN_IF_ERROR(communicator->AllReduce(token.mutable_data_ptr<float>(), 1));
    FSDPD_RETURN_IF_ERROR(communicator->Await());
    all = token.item<float>() == 0;
    return absl::OkStatus();
  }));
  return all;
}

}  // namespace fsdpd
