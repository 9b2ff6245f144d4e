// Adapter from any torch::nn::Module to a unit: the module's parameters become the bound views, its forward
// becomes a UnitForward, and autograd_unit.h does the rest.
//
//   struct BlockImpl : torch::nn::Module { ... torch::Tensor forward(const torch::Tensor& x); };
//   auto block = std::make_shared<BlockImpl>(...);
//   UnitFacts facts = *DescribeModule("layer.0", UnitKind::kBlock, *block);
//   auto unit = MakeModuleUnit(facts, block, [block](const UnitInput& in) {
//     return UnitOutput{block->forward(in.hidden), {}};
//   });
//
// A module owns its parameter tensors and accesses them by name, so Bind swaps their storage (set_data)
// without the module's cooperation. The module's own values are discarded when the unit is made; initial
// values come from the facts (initial_values.h). They therefore do not depend on the number of ranks, and a
// model that is built unit by unit never holds more than one full unit.
//
// Not supported: modules whose forward changes state (running averages of batch norm, random numbers of
// dropout), since activation checkpointing runs forward twice. Buffers move to the parameters' device and
// keep their type.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/model/unit/initial_values.h"
#include "fsdp/model/unit/unit.h"

namespace torch::nn {
class Module;
}

namespace fsdpd {

// Describes names (dotted, as in named_parameters()), shapes and order of the module's parameters. Parameters
// that do not require a gradient are frozen. Bytes and FLOPs stay 0: only the author of the module knows
// them. INVALID_ARGUMENT for a module without parameters, with a parameter under two names, or with a
// parameter that is not a plain floating-point tensor.
absl::StatusOr<UnitFacts> DescribeModule(const std::string& name, UnitKind kind,
                                         const torch::nn::Module& module);

using ModuleForward = std::function<UnitOutput(const UnitInput& input)>;

// `facts`: from DescribeModule for this module, with bytes and FLOPs filled in if known. `inits`: one per
// parameter, by default DefaultInits(). `forward` runs the module, which must not be used elsewhere from here
// on.
std::unique_ptr<Unit> MakeModuleUnit(UnitFacts facts, std::shared_ptr<torch::nn::Module> module,
                                     ModuleForward forward);
std::unique_ptr<Unit> MakeModuleUnit(UnitFacts facts, std::shared_ptr<torch::nn::Module> module,
                                     ModuleForward forward, std::vector<ParamInit> inits);

}  // namespace fsdpd
