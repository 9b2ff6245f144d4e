// Collective agreement on a local condition, such as whether a rank has a window: ranks that decide
// differently would enter different collectives and deadlock.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

// Returns whether `here` is true on every rank. Collective. `token`: one fp32 element on the communicator's
// device, overwritten.
absl::StatusOr<bool> HoldsOnAllRanks(Communicator* communicator, bool here, const at::Tensor& token);

}  // namespace fsdpd
