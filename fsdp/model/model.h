// Which units run a job's model: the one place that knows every family.
#pragma once

#include <memory>
#include <vector>

#include "fsdp/model/unit.h"

namespace fsdpd {

// The units of `facts`, in order: native ones for the Llama family, autograd ones for GPT-2. `device` is
// where the parameters that they are bound to will be. REQUIRES: `facts` is DescribeSpec(spec).
std::vector<std::unique_ptr<Unit>> MakeUnits(const Spec& spec, const ModelFacts& facts, at::Device device);

}  // namespace fsdpd
