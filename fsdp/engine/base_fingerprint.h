// Fingerprint of the frozen weights of a LoRA job: a hash of their names and stored bits. It does not depend
// on the number of ranks or on sharding, so a job recognizes its base model after an elastic restart, and in
// another format or directory.
//
// Each rank sums the hashes of the elements that it owns, and the ranks add up their sums. Collective.
// Errors: the communicator's, and LibTorch's exceptions as Status.
#pragma once

#include <absl/status/statusor.h>

#include "fsdp/checkpoint/names/base_label.h"
#include "fsdp/comm/communicator.h"
#include "fsdp/optimizer/sharded_params.h"

namespace fsdpd {

// Without a path. `all`: of all ranks, on the device of the parameters.
absl::StatusOr<BaseLabel> FingerprintOfBase(const Layout& layout, const MeshPosition& position,
                                            const ShardedParams& params, Communicator* all);

}  // namespace fsdpd
