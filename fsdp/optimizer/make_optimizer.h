// Factory of the optimizer that a spec selects.
#pragma once

#include <memory>

#include "fsdp/optimizer/optimizer.h"
#include "fsdp/plan/layout/layout.h"

namespace fsdpd {

// Creates the optimizer for the main shards of the rank at `position`.
std::unique_ptr<Optimizer> MakeOptimizer(const Spec& spec, const Layout& layout, MeshPosition position,
                                         at::Device device);

}  // namespace fsdpd
