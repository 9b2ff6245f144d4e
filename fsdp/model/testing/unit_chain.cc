#include "fsdp/model/testing/unit_chain.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

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

UnitChain::UnitChain(ModelFacts facts, std::vector<std::unique_ptr<Unit>> units, TensorsByUnit params,
                     at::ScalarType grads)
    : facts_(std::move(facts)), units_(std::move(units)), params_(std::move(params)) {
  for (const auto& unit : params_) {
    grads_.emplace_back();
    for (const at::Tensor& param : unit) grads_.back().push_back(at::full_like(param, 0, grads));
  }
  for (size_t u = 0; u < units_.size(); ++u) units_[u]->Bind(WithBorrowed(params_, u));
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

at::Tensor UnitChain::Loss(const at::Tensor& tokens, const at::Tensor& targets, Keep keep, int slot) {
  UnitInput input{tokens, targets, at::Tensor()};
  at::Tensor loss;
  for (const auto& unit : units_) {
    const UnitOutput output = unit->Forward(slot, input, keep);
    input.hidden = output.hidden;
    loss = output.loss;
  }
  return loss;
}

at::Tensor UnitChain::LossAndGradients(const at::Tensor& tokens, const at::Tensor& targets, Keep keep,
                                       double grad_loss) {
  for (auto& unit : grads_) {  // Backward must set every element.
    for (at::Tensor& grad : unit) grad.fill_(std::numeric_limits<float>::quiet_NaN());
  }
  at::Tensor loss = Loss(tokens, targets, keep);
  TensorsByUnit into = grads_;
  for (size_t u = 0; u < into.size(); ++u) {
    for (size_t p = 0; p < into[u].size(); ++p) {
      if (!facts_.units[u].params[p].trainable) into[u][p] = at::Tensor();
    }
  }
  at::Tensor grad;
  for (int u = static_cast<int>(units_.size()) - 1; u >= 0; --u) {
    // A lender adds to what its borrower, later in the chain, has written.
    const at::Tensor of_loss =
        at::full({}, grad_loss, at::TensorOptions().dtype(at::kFloat).device(tokens.device()));
    grad = units_[u]->Backward(0, grad, of_loss, /*accumulate=*/IsLender(u), WithBorrowed(into, u));
    if (!loss.defined()) loss = units_[u]->TakeLoss();
  }
  return loss;
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
