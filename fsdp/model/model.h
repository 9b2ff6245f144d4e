// Which units run a job's model: the one place that knows every family.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

// The units of `facts`, in order: native ones for the Llama family, autograd ones for GPT-2. `device` is
// where the parameters that they are bound to will be. REQUIRES: `facts` is DescribeSpec(spec), and the model
// is no plug-in's. LibTorch's exceptions pass through.
std::vector<std::unique_ptr<Unit>> MakeUnits(const Spec& spec, const ModelFacts& facts, at::Device device);

// The same for every spec, a plug-in's included. Errors: plugin.h's, and LibTorch's as a Status.
absl::StatusOr<std::vector<std::unique_ptr<Unit>>> MakeModel(const Spec& spec, const ModelFacts& facts,
                                                             at::Device device);

}  // namespace fsdpd
