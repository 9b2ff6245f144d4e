// A unit: the smallest part of a model that is gathered and released as a whole. The engine gives it views of
// its gathered parameters and of its gradient bucket; the unit runs forward and backward on them.
//
// Call order, for each micro-batch: Forward, later Backward with the same slot. Parameters are readable only
// within a call (the engine may reuse their bytes between forward and backward), at the same address each
// time. Thread safety: none; one thread drives a unit. Errors: LibTorch's exceptions are caught by the
// engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "fsdp/plan/model_facts.h"

namespace fsdpd {

// What flows through the chain of units. The first unit reads `tokens`, the last one reads `targets` and
// gives `loss` instead of hidden states.
struct UnitInput {
  at::Tensor tokens;   // [micro_batch, sequence] int64
  at::Tensor targets;  // [micro_batch, sequence] int64
  at::Tensor hidden;   // [micro_batch, sequence, hidden]; undefined for the first unit.
};

struct UnitOutput {
  at::Tensor hidden;  // Undefined for the last unit.
  at::Tensor loss;    // Scalar fp32, mean over the micro-batch's tokens; undefined for other units.
};

class Unit {
 public:
  virtual ~Unit() = default;

  // Binds the unit to its parameters: views into the gathered bucket, in UnitFacts' order. Called once.
  virtual void Bind(const std::vector<at::Tensor>& params) = 0;

  // `slot` tells micro-batches in flight apart. With `keep` false nothing but the input is kept, and Backward
  // runs the forward again.
  virtual UnitOutput Forward(int slot, const UnitInput& input, bool keep) = 0;

  // `grad_hidden` is the gradient of UnitOutput::hidden, or undefined for the last unit, whose loss has
  // gradient `loss_scale`. Writes (or adds, with `accumulate`) each parameter's gradient into `param_grads`
  // (fp32 views of the bucket, in order) and returns the gradient of the input's hidden states (undefined for
  // the first unit). Frees what Forward kept for the slot.
  virtual at::Tensor Backward(int slot, const at::Tensor& grad_hidden, double loss_scale, bool accumulate,
                              const std::vector<at::Tensor>& param_grads) = 0;

  // Initial values of parameter `index`, whole, in fp32 on the CPU. Depends on the seed, the unit's and the
  // parameter's name alone, so it is the same for every world size and strategy.
  virtual at::Tensor InitialValue(int index, uint64_t seed) const = 0;
};

}  // namespace fsdpd
