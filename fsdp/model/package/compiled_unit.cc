#include "fsdp/model/package/compiled_unit.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <utility>

#include "base/check.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/model/unit/initial_values.h"

namespace fsdpd {
namespace {

// A parameter that the unit does not use has a gradient of zero.
void ZeroOthers(const std::vector<bool>& written, const ParamGrads& grads) {
  for (size_t i = 0; i < written.size(); ++i) {
    if (!written[i] && !grads.accumulate && grads.into[i].defined()) grads.into[i].zero_();
  }
}

at::Tensor PositionsInRows(const at::Tensor& tokens) {
  return at::arange(tokens.size(1), tokens.options()).expand_as(tokens).contiguous();
}

void CheckRows(const at::Tensor& hidden, const UnitInput& input) {
  TORCH_CHECK(hidden.dim() == 3 && hidden.size(0) * hidden.size(1) == input.targets.numel(),
              "package: its last unit returns ", hidden.sizes(), " for ", input.targets.numel(), " targets");
}

std::vector<at::Tensor> Call(const UnitCall& call, std::vector<at::Tensor> inputs) {
  std::vector<at::Tensor> outputs = call.compiled->Run(std::move(inputs));
  TORCH_CHECK(outputs.size() == call.outputs.size(), "compiled call: wrong number of results (got ",
              outputs.size(), ", want ", call.outputs.size(), ")");
  return outputs;
}

}  // namespace

CompiledUnit::CompiledUnit(UnitFacts facts, std::shared_ptr<const UnitCalls> calls,
                           std::vector<at::Tensor> buffers, std::vector<PackageValues> initial,
                           std::optional<v1::Package::Head> head)
    : facts_(std::move(facts)),
      calls_(std::move(calls)),
      buffers_(std::move(buffers)),
      initial_(std::move(initial)),
      head_(std::move(head)) {
  FSDPD_CHECK(initial_.size() == facts_.params.size());
}

void CompiledUnit::Bind(const std::vector<BoundParam>& params, UnitContext* /*context*/) {
  FSDPD_CHECK(params_.empty() && params.size() >= facts_.params.size());
  for (const BoundParam& param : params) {
    FSDPD_CHECK(!param.scales.defined());
    params_.push_back(param.data);
  }
}

at::Tensor CompiledUnit::InputOf(const v1::PackageValue& value, const UnitInput& input,
                                 std::vector<at::Tensor>* saved, const at::Tensor& grad_out) const {
  const auto index = static_cast<size_t>(value.index());
  switch (value.kind()) {
    case v1::PackageValue::KIND_TOKENS:
      return input.tokens;
    case v1::PackageValue::KIND_POSITIONS:
      return input.positions.defined() ? input.positions : PositionsInRows(input.tokens);
    case v1::PackageValue::KIND_HIDDEN:
      return input.hidden.contiguous();
    case v1::PackageValue::KIND_PARAM:
      return params_.at(index);
    case v1::PackageValue::KIND_BUFFER:
      return buffers_.at(index);
    case v1::PackageValue::KIND_SAVED:
      return std::move(saved->at(index));  // The call frees it after its last use.
    case v1::PackageValue::KIND_GRAD_HIDDEN:
      return grad_out.contiguous();
    default:
      FSDPD_CHECK(false);
      return {};
  }
}

at::Tensor CompiledUnit::RunForward(const UnitCall& call, const UnitInput& input,
                                    std::vector<at::Tensor>* saved) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> inputs;
  for (const v1::PackageValue& value : call.inputs) inputs.push_back(InputOf(value, input, nullptr, {}));
  std::vector<at::Tensor> outputs = Call(call, std::move(inputs));
  at::Tensor hidden;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const v1::PackageValue& value = call.outputs[i];
    if (value.kind() == v1::PackageValue::KIND_HIDDEN) {
      hidden = std::move(outputs[i]);
    } else {
      saved->resize(std::max(saved->size(), static_cast<size_t>(value.index()) + 1));
      saved->at(static_cast<size_t>(value.index())) = std::move(outputs[i]);
    }
  }
  return hidden;
}

at::Tensor CompiledUnit::RunBackward(Saved saved, const at::Tensor& grad_out, const ParamGrads& grads,
                                     std::vector<bool>* written) const {
  const at::NoGradGuard no_grad;
  const UnitCall& call = *saved.backward;
  if (!call) return {};
  std::vector<at::Tensor> inputs;
  for (const v1::PackageValue& value : call.inputs)
    inputs.push_back(InputOf(value, saved.input, &saved.tensors, grad_out));
  saved = {};  // Only the call holds the saved tensors.
  std::vector<at::Tensor> outputs = Call(call, std::move(inputs));
  at::Tensor grad_hidden;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor grad = std::move(outputs[i]);
    if (call.outputs[i].kind() == v1::PackageValue::KIND_GRAD_HIDDEN) {
      grad_hidden = grad;
      continue;
    }
    const auto index = static_cast<size_t>(call.outputs[i].index());
    if (grads.into.at(index).defined())
      GradInto(grad, grads.accumulate || written->at(index), grads.into[index]);
    written->at(index) = true;
  }
  return grad_hidden;
}

UnitOutput CompiledUnit::Forward(int slot, const UnitInput& input, ActivationSaving saving) {
  Saved saved;
  saved.input = input;
  const UnitCall* forward = &calls_->evaluation;
  if (saving != ActivationSaving::kNothing) {
    const UnitCalls::Variant& variant = calls_->variants.at(saving);
    if (variant.forward) forward = &variant.forward;
    saved.backward = &variant.backward;
  }
  const at::Tensor hidden = RunForward(*forward, input, &saved.tensors);
  if (saving != ActivationSaving::kNothing) slots_.Put(slot, std::move(saved));
  if (!head_.has_value()) return {hidden, at::Tensor()};
  FSDPD_CHECK(saving == ActivationSaving::kNothing);  // Training calls ForwardBackward.
  const at::NoGradGuard no_grad;
  CheckRows(hidden, input);
  return {at::Tensor(), HeadLoss(hidden.flatten(0, 1), input.targets.flatten(), OutputProjection())};
}

at::Tensor CompiledUnit::Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                                  WeightGrads /*when*/) {
  std::vector<bool> written(params_.size());
  at::Tensor grad_hidden = RunBackward(slots_.Take(slot), grad_out, grads, &written);
  ZeroOthers(written, grads);
  return grad_hidden;
}

Unit::LossAndGrad CompiledUnit::ForwardBackward(int /*slot*/, const UnitInput& input,
                                                const at::Tensor& grad_loss, const ParamGrads& grads) {
  FSDPD_CHECK(head_.has_value());
  const at::NoGradGuard no_grad;
  const UnitCalls::Variant& variant = calls_->variants.at(ActivationSaving::kAll);
  Saved saved;
  saved.input = input;
  saved.backward = &variant.backward;
  at::Tensor hidden =
      RunForward(variant.forward ? variant.forward : calls_->evaluation, input, &saved.tensors);
  CheckRows(hidden, input);
  const auto weight = static_cast<size_t>(head_->weight()), bias = static_cast<size_t>(head_->bias());
  LossAndGrad result = HeadLossBackward(
      hidden.flatten(0, 1), input.targets.flatten(), grad_loss, OutputProjection(),
      {grads.into.at(weight), head_->has_bias() ? grads.into.at(bias) : at::Tensor(), grads.accumulate});
  const at::Tensor grad_out = std::exchange(result.grad_hidden, {}).view_as(hidden);
  hidden = at::Tensor();
  std::vector<bool> written(params_.size());
  written[weight] = true;
  if (head_->has_bias()) written[bias] = true;
  result.grad_hidden = RunBackward(std::move(saved), grad_out, grads, &written);
  ZeroOthers(written, grads);
  return result;
}

HeadParams CompiledUnit::OutputProjection() const {
  HeadParams params{params_.at(static_cast<size_t>(head_->weight()))};
  if (head_->has_bias()) params.bias = params_.at(static_cast<size_t>(head_->bias()));
  if (head_->has_logit_scale()) params.logit_scale = head_->logit_scale();
  params.soft_cap = head_->soft_cap();
  return params;
}

void CompiledUnit::VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) {
  Saved* const saved = slots_.Find(slot);
  if (saved->input.hidden.defined()) visit(&saved->input.hidden);
  for (at::Tensor& tensor : saved->tensors) visit(&tensor);
}

uint64_t CompiledUnit::NameHash(int index, uint64_t seed) const {
  const ParamFacts& param = facts_.params[static_cast<size_t>(index)];
  return NumbersOf(OwnerOf(facts_.name, param.owner), param.name, ParamInit{}, seed).key;
}

at::Tensor CompiledUnit::InitialValue(int index, uint64_t seed, int64_t begin, int64_t elements) const {
  return initial_[static_cast<size_t>(index)].Draw(NameHash(index, seed), begin, elements);
}

std::optional<kernels::NormalNumbers> CompiledUnit::InitialNumbers(int index, uint64_t seed) const {
  return initial_[static_cast<size_t>(index)].Numbers(NameHash(index, seed));
}

}  // namespace fsdpd
