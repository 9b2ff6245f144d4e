// A unit whose backward is LibTorch's autograd, confined to the unit: it turns any differentiable forward
// into a unit. Use it for models without a hand-written backward; it is also the reference implementation for
// native units.
//
// How it satisfies the contract of unit.h:
//   - The leaves are the bound views themselves. The all-gather writes their bytes through other tensors, so
//     autograd's version counters never change. What autograd saves is an address, which the plan keeps
//     stable.
//   - Gradients leave the graph through sinks that write them into the bucket as soon as each is computed:
//     there is no second copy of a unit's gradients, and the cast needs no pass of its own.
//   - The saved activations are the graph and what its operators saved; the output is not saved.
//   - A frozen parameter requires no gradient, so autograd neither computes one nor saves anything for it.
//   - Autograd saves what its operators save: ActivationSaving::kSelective equals ActivationSaving::kAll.
//     With kInput only the input is saved, and Backward reruns the forward (activation checkpointing).
//
// On CUDA, Bind, Forward and Backward must be called with the same current stream: autograd runs the backward
// of a node on the stream of its forward.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/model/unit/initial_values.h"
#include "fsdp/model/unit/unit.h"

namespace fsdpd {

// A differentiable computation, called with gradient mode on or off. `params` are the tensors of Bind, in
// order.
using UnitForward = std::function<UnitOutput(const UnitInput& input, const std::vector<at::Tensor>& params)>;

class AutogradUnit : public Unit {
 public:
  // `inits`: one per parameter of the facts.
  AutogradUnit(UnitFacts facts, std::vector<ParamInit> inits, UnitForward forward);
  ~AutogradUnit() override;

  void Bind(const std::vector<BoundParam>& params, UnitContext* context) override;
  UnitOutput Forward(int slot, const UnitInput& input, ActivationSaving saving) override;
  // Autograd computes all gradients together; `when` has no effect, and nothing is deferred.
  at::Tensor Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                      WeightGrads when) override;
  // Visits the input if it is all that is saved (kInput). Tensors in the graph belong to autograd.
  void VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) override;
  at::Tensor InitialValue(int index, uint64_t seed, int64_t begin, int64_t elements) const override;
  std::optional<kernels::NormalNumbers> InitialNumbers(int index, uint64_t seed) const override;

 private:
  struct Leaves;
  struct Saved;

  // Returns the tensor that `forward` reads parameter `index` from. It must share storage with `bound`, not
  // yet require a gradient, and have its own version counter, since the all-gather writes through tensors
  // that may share the counter of the view.
  virtual at::Tensor MakeLeaf(int index, const at::Tensor& bound);

  UnitOutput RunWithGraph(Saved* saved) const;

  const UnitFacts facts_;
  const std::vector<ParamInit> inits_;
  const UnitForward forward_;
  std::unique_ptr<Leaves> leaves_;
  std::map<int, std::unique_ptr<Saved>> saved_;
};

}  // namespace fsdpd
