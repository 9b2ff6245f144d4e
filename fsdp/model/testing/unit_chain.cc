#include "fsdp/model/testing/unit_chain.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "fsdp/model/testing/plain_params.h"

namespace fsdpd {

TensorsByUnit TestParams(const ModelFacts& facts, const std::vector<std::unique_ptr<Unit>>& units,
                         double scale) {
  TensorsByUnit params(units.size());
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t p = 0; p < facts.units[u].params.size(); ++p) {
      const ParamFacts& param = facts.units[u].params[p];
      const at::Tensor value = units[u]->InitialValue(static_cast<int>(p), 1, 0, param.elements());
      const bool matrix = param.shape.size() > 1;
      params[u].push_back(matrix ? value.mul(scale).view(param.shape)
                                 : value + at::arange(value.numel()) * 0.1);
    }
  }
  return params;
}

namespace {

std::vector<at::Tensor> InARow(const std::vector<at::Tensor>& tensors, at::ScalarType type) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  const at::Tensor row = at::zeros({elements}, tensors[0].options().dtype(type));
  std::vector<at::Tensor> views;
  for (const at::Tensor& tensor : tensors) {
    const int64_t begin = views.empty() ? 0 : views.back().storage_offset() + views.back().numel();
    views.push_back(row.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    views.back().copy_(tensor);
  }
  return views;
}

}  // namespace

UnitChain::UnitChain(ModelFacts facts, std::vector<std::unique_ptr<Unit>> units, TensorsByUnit params,
                     at::ScalarType grads)
    : facts_(std::move(facts)), units_(std::move(units)) {
  for (const std::vector<at::Tensor>& unit : params) {
    params_.push_back(InARow(unit, unit[0].scalar_type()));
    grads_.push_back(InARow(unit, grads));
  }
  for (size_t u = 0; u < units_.size(); ++u) BindSingleRank(units_[u].get(), WithBorrowed(params_, u));
}

std::vector<at::Tensor> UnitChain::WithBorrowed(const TensorsByUnit& own, size_t unit) const {
  std::vector<at::Tensor> tensors = own[unit];
  const int lender = facts_.units[unit].borrows;
  if (lender >= 0) tensors.insert(tensors.end(), own[lender].begin(), own[lender].end());
  return tensors;
}

bool UnitChain::IsLender(size_t unit) const {
  for (const UnitFacts& other : facts_.units) {
    if (other.borrows == static_cast<int>(unit)) return true;
  }
  return false;
}

at::Tensor UnitChain::Loss(const UnitInput& batch) {
  UnitInput input = batch;
  at::Tensor loss;
  for (const auto& unit : units_) {
    const UnitOutput output = unit->Forward(/*slot=*/0, input, ActivationSaving::kNothing);
    input.hidden = output.hidden;
    loss = output.loss;
  }
  return loss;
}

at::Tensor UnitChain::LossAndGradients(const UnitInput& batch, ActivationSaving saving, double grad_loss,
                                       WeightGrads when) {
  for (auto& unit : grads_) {  // Backward must set every element.
    for (at::Tensor& grad : unit) grad.fill_(std::numeric_limits<float>::quiet_NaN());
  }
  UnitInput input = batch;
  for (size_t u = 0; u + 1 < units_.size(); ++u) input.hidden = units_[u]->Forward(0, input, saving).hidden;
  TensorsByUnit into = grads_;
  for (size_t u = 0; u < into.size(); ++u) {
    for (size_t p = 0; p < into[u].size(); ++p) {
      if (!facts_.units[u].params[p].trainable) into[u][p] = at::Tensor();
    }
  }
  const at::Tensor of_loss =
      at::full({}, grad_loss, at::TensorOptions().dtype(at::kFloat).device(batch.tokens.device()));
  const size_t last = units_.size() - 1;
  const Unit::LossAndGrad end = units_[last]->ForwardBackward(0, input, of_loss, {WithBorrowed(into, last)});
  at::Tensor grad = end.grad_hidden;
  for (size_t u = last; u-- > 0;) {
    // A lender adds to the gradient that its borrower, later in the chain, has written.
    const std::vector<at::Tensor> own = WithBorrowed(into, u);
    const ParamGrads grads{own, /*accumulate=*/IsLender(u)};
    grad = units_[u]->Backward(0, grad, grads, when);
    if (when == WeightGrads::kLater) units_[u]->BackwardWeights(0, grads);
  }
  return end.loss;
}

void UnitChain::ExpectGradients(const TensorsByUnit& expected, double relative) const {
  ASSERT_EQ(expected.size(), grads_.size());
  for (size_t u = 0; u < grads_.size(); ++u) {
    ASSERT_EQ(expected[u].size(), grads_[u].size());
    for (size_t p = 0; p < grads_[u].size(); ++p) {
      const double norm = expected[u][p].norm().item<double>();
      EXPECT_GT(norm, 0) << facts_.units[u].name << " " << facts_.units[u].params[p].name;
      EXPECT_LE((grads_[u][p].to(at::kDouble) - expected[u][p]).norm().item<double>(), relative * norm)
          << facts_.units[u].name << " " << facts_.units[u].params[p].name;
    }
  }
}

TensorsByUnit DoubleLeaves(const TensorsByUnit& params) {
  TensorsByUnit leaves(params.size());
  for (size_t u = 0; u < params.size(); ++u) {
    for (const at::Tensor& param : params[u]) {
      leaves[u].push_back(param.to(at::kDouble).clone().set_requires_grad(true));
    }
  }
  return leaves;
}

TensorsByUnit GradsOf(const TensorsByUnit& leaves) {
  TensorsByUnit grads(leaves.size());
  for (size_t u = 0; u < leaves.size(); ++u) {
    for (const at::Tensor& leaf : leaves[u]) grads[u].push_back(leaf.grad());
  }
  return grads;
}

}  // namespace fsdpd
