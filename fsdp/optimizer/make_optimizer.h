// Chooses the rule that the spec names.
#pragma once

#include <memory>

#include "fsdp/optimizer/optimizer.h"
#include "fsdp/plan/layout/layout.h"

namespace fsdpd {

// The spec's optimizer for the main pieces of the rank at `position`.
std::unique_ptr<Optimizer> MakeOptimizer(const Spec& spec, const Layout& layout, MeshPosition position,
                                         at::Device device);

}  // namespace fsdpd
