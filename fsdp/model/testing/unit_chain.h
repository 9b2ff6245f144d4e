// Test driver that runs a model's units in sequence like the executor, on plain tensors of one rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

using TensorsByUnit = std::vector<std::vector<at::Tensor>>;  // Own parameters in the facts' order.

// Parameter values that leave the linear range of attention, gates and norms: matrices are `scale` times
// their initial values, vectors are shifted by 0.1 times the element's index.
TensorsByUnit TestParams(const ModelFacts& facts, const std::vector<std::unique_ptr<Unit>>& units,
                         double scale);

class UnitChain {
 public:
  // Binds the units to copies of `params`; gradients are of type `grads`. As in a bucket, the parameters of a
  // unit are adjacent in memory, and so are their gradients.
  UnitChain(ModelFacts facts, std::vector<std::unique_ptr<Unit>> units, TensorsByUnit params,
            at::ScalarType grads = at::kFloat);

  // `batch`: without hidden states.
  at::Tensor Loss(const UnitInput& batch);

  // Runs forward and backward; grads() are then the gradients of grad_loss times the loss. Those of frozen
  // parameters stay NaN.
  at::Tensor LossAndGradients(const UnitInput& batch, ActivationSaving saving, double grad_loss = 1,
                              WeightGrads when = WeightGrads::kNow);

  const ModelFacts& facts() const { return facts_; }
  const TensorsByUnit& params() const { return params_; }
  const TensorsByUnit& grads() const { return grads_; }

  // Fails the test unless each gradient is within `relative` of `expected`, by norm.
  void ExpectGradients(const TensorsByUnit& expected, double relative) const;

 private:
  // In the order of Bind: the unit's own parameters, then those of the lender.
  std::vector<at::Tensor> WithBorrowed(const TensorsByUnit& own, size_t unit) const;
  bool IsLender(size_t unit) const;

  const ModelFacts facts_;
  const std::vector<std::unique_ptr<Unit>> units_;
  TensorsByUnit params_;
  TensorsByUnit grads_;
};

// Leaves in double precision with the same values, for a reference computed as one graph.
TensorsByUnit DoubleLeaves(const TensorsByUnit& params);
TensorsByUnit GradsOf(const TensorsByUnit& leaves);

}  // namespace fsdpd
