// A collective decision about a property that each rank checks by itself, as whether it has a window: ranks
// that differ would enter different collectives and wait for each other forever.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

// Whether `here` is true on every rank. Collective. `token`: one fp32 on the communicator's device, which is
// overwritten.
absl::StatusOr<bool> HoldsOnAllRanks(Communicator* communicator, bool here, const at::Tensor& token);

}  // namespace fsdpd
