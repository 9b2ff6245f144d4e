// Model factory: maps the model section of a spec to units. The only place that knows every model family.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

// Makes the units of `facts`, in order: native units for the Llama family, autograd units for GPT-2. `device`
// is where their parameters will be. REQUIRES: `facts` is DescribeSpec(spec), and the model is
// neither a plug-in nor a package.
// LibTorch's exceptions pass through.
std::vector<std::unique_ptr<Unit>> MakeUnits(const Spec& spec, const ModelFacts& facts, at::Device device);

// The same for any spec, including plug-ins and packages. `package_dir`: where ranks of the node unpack the
// package; unused for other models. Errors: those of plugin.h and package_model.h, and LibTorch's exceptions
// as Status.
absl::StatusOr<std::vector<std::unique_ptr<Unit>>> MakeModel(const Spec& spec, const ModelFacts& facts,
                                                             at::Device device,
                                                             const std::string& package_dir);

}  // namespace fsdpd
