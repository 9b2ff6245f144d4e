// A unit whose backward is LibTorch's autograd, run inside the unit only: any differentiable forward becomes
// a unit. It is the way for a model that has no hand-written backward, and the oracle for those that have
// one.
//
// How it meets unit.h's contract:
//   - Leaves are the bound views themselves. The gather writes their bytes through other tensors, so
//     autograd's version counters never move; what autograd saved is an address, and the plan keeps the
//     address.
//   - Gradients leave autograd's graph through sinks that write straight into the bucket, each as soon as it
//     is computed: no second copy of a unit's gradients exists, and the cast costs no pass of its own.
//   - What is kept is the graph, with what its operators saved; the output itself is not.
//   - A frozen parameter needs no gradient, so autograd neither computes one nor saves anything for it.
//   - Autograd saves what its operators save: Keep::kSelective is Keep::kAll. With kInput only the input is
//     kept, and Backward runs the forward again on the same bytes.
//
// On CUDA, Bind, Forward and Backward must run with the same stream current: autograd runs a node's backward
// on the stream of its forward.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/model/unit/initial_values.h"
#include "fsdp/model/unit/unit.h"

namespace fsdpd {

// The differentiable computation; called with gradient mode on or off. `params` are Bind's, in its order.
using UnitForward = std::function<UnitOutput(const UnitInput& input, const std::vector<at::Tensor>& params)>;

class AutogradUnit : public Unit {
 public:
  // `inits`: one for each of the facts' parameters.
  AutogradUnit(UnitFacts facts, std::vector<ParamInit> inits, UnitForward forward);
  ~AutogradUnit() override;

  void Bind(const std::vector<BoundParam>& params, UnitContext* context) override;
  UnitOutput Forward(int slot, const UnitInput& input, Keep keep) override;
  // Autograd computes all gradients at once: nothing is put off.
  at::Tensor Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                      WeightGrads when) override;
  // The input where it is all that is kept: what the graph saved belongs to the graph.
  void VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) override;
  at::Tensor InitialValue(int index, uint64_t seed, int64_t begin, int64_t elements) const override;
  std::optional<kernels::NormalNumbers> InitialNumbers(int index, uint64_t seed) const override;

 private:
  struct Leaves;
  struct Saved;

  // The tensor that `forward` reads parameter `index` from: it must share `bound`'s bytes, need no gradient
  // yet, and have a version counter of its own, since the gather writes through tensors that may share the
  // view's.
  virtual at::Tensor MakeLeaf(int index, const at::Tensor& bound);

  UnitOutput RunWithGraph(Saved* saved) const;

  const UnitFacts facts_;
  const std::vector<ParamInit> inits_;
  const UnitForward forward_;
  std::unique_ptr<Leaves> leaves_;
  std::map<int, std::unique_ptr<Saved>> saved_;
};

}  // namespace fsdpd
