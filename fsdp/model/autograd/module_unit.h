// Any torch::nn::Module as a unit: the module's parameters become the bound views, its forward is a
// UnitForward, and autograd_unit.h does the rest.
//
//   struct BlockImpl : torch::nn::Module { ... torch::Tensor forward(const torch::Tensor& x); };
//   auto block = std::make_shared<BlockImpl>(...);
//   UnitFacts facts = *DescribeModule("layer.0", UnitKind::kBlock, *block);
//   auto unit = MakeModuleUnit(facts, block, [block](const UnitInput& in) {
//     return UnitOutput{block->forward(in.hidden), {}};
//   });
//
// How: a module holds its parameters as tensors of its own and uses them by name, so Bind exchanges what
// these tensors point to (set_data) and nothing in the module has to know. The module's own values are given
// up when the unit is made: initial values come from the facts (initial_values.h), so that they do not depend
// on the number of ranks, and a model built unit by unit never holds more than one unit whole.
//
// Not for modules whose forward changes state (batch norm's running averages, dropout's random numbers): with
// recompute it runs twice. Buffers, such as tables, go along to the parameters' device and keep their type.
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

// Names (dotted, as named_parameters() gives them), shapes and order of the module's parameters; parameters
// that need no gradient are frozen. Bytes and FLOPs stay 0: only the module's author knows them.
// INVALID_ARGUMENT for a module without parameters, with a parameter under two names, or with one that is not
// a plain floating-point tensor.
absl::StatusOr<UnitFacts> DescribeModule(const std::string& name, UnitKind kind,
                                         const torch::nn::Module& module);

using ModuleForward = std::function<UnitOutput(const UnitInput& input)>;

// `facts`: DescribeModule's of this module, bytes and FLOPs filled in as known; `inits`: one for each
// parameter, by default DefaultInits'. `forward` runs the module, which nobody else uses from here on.
std::unique_ptr<Unit> MakeModuleUnit(UnitFacts facts, std::shared_ptr<torch::nn::Module> module,
                                     ModuleForward forward);
std::unique_ptr<Unit> MakeModuleUnit(UnitFacts facts, std::shared_ptr<torch::nn::Module> module,
                                     ModuleForward forward, std::vector<ParamInit> inits);

}  // namespace fsdpd
