#include "fsdp/model/autograd/module_unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <torch/nn/module.h>

#include <map>
#include <utility>

#include "base/check.h"
#include "fsdp/model/autograd/autograd_unit.h"

namespace fsdpd {
namespace {

class ModuleUnit : public AutogradUnit {
 public:
  ModuleUnit(UnitFacts facts, std::vector<ParamInit> inits, std::shared_ptr<torch::nn::Module> module,
             ModuleForward forward)
      : AutogradUnit(facts, std::move(inits),
                     [forward = std::move(forward)](const UnitInput& input, const std::vector<at::Tensor>&) {
                       return forward(input);
                     }),
        module_(std::move(module)) {
    FSDPD_CHECK(facts.borrows < 0);  // A module has no tensors that another unit's parameters could replace.
    for (const auto& item : module_->named_parameters()) params_.push_back(item.value());
    FSDPD_CHECK(params_.size() == facts.params.size());
    for (at::Tensor& param : params_) param.set_data(at::empty({0}, param.options().requires_grad(false)));
  }

 private:
  at::Tensor MakeLeaf(int index, const at::Tensor& bound) override {
    if (index == 0) MoveBuffers(bound.device());
    at::Tensor param = params_[index];
    param.set_requires_grad(false);  // The base class sets it; the bound tensor may have another type.
    param.set_data(bound.variable_data());
    return param;
  }

  void MoveBuffers(at::Device device) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& buffer : module_->buffers()) buffer.set_data(buffer.to(device));
  }

  const std::shared_ptr<torch::nn::Module> module_;
  std::vector<at::Tensor> params_;  // The module's own tensors: handles to what its members hold.
};

}  // namespace

absl::StatusOr<UnitFacts> DescribeModule(const std::string& name, UnitKind kind,
                                         const torch::nn::Module& module) {
  UnitFacts facts;
  facts.name = name;
  facts.kind = kind;
  std::map<const c10::TensorImpl*, std::string> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& param = item.value();
    const auto refuse = [&](const std::string& why) {
      return absl::InvalidArgumentError(absl::StrCat("unit ", name, ": parameter ", item.key(), " ", why));
    };
    if (!param.defined()) return refuse("is undefined");
    const auto [first, is_new] = seen.emplace(param.unsafeGetTensorImpl(), item.key());
    if (!is_new)
      return refuse(absl::StrCat("is the same tensor as ", first->second, "; use one name for both"));
    if (!param.is_floating_point() || param.layout() != at::kStrided) {
      return refuse("is not a plain floating-point tensor");
    }
    ParamFacts fact{item.key(), param.sizes().vec(), /*decay=*/param.dim() > 1};
    fact.trainable = param.requires_grad();
    facts.params.push_back(std::move(fact));
  }
  if (!facts.params.empty()) return facts;
  return absl::InvalidArgumentError(absl::StrCat("unit ", name, ": the module has no parameters"));
}

std::unique_ptr<Unit> MakeModuleUnit(UnitFacts facts, std::shared_ptr<torch::nn::Module> module,
                                     ModuleForward forward) {
  std::vector<ParamInit> inits = DefaultInits(facts);
  return MakeModuleUnit(std::move(facts), std::move(module), std::move(forward), std::move(inits));
}

std::unique_ptr<Unit> MakeModuleUnit(UnitFacts facts, std::shared_ptr<torch::nn::Module> module,
                                     ModuleForward forward, std::vector<ParamInit> inits) {
  return std::make_unique<ModuleUnit>(std::move(facts), std::move(inits), std::move(module),
                                      std::move(forward));
}

}  // namespace fsdpd
