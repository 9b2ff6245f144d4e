// A unit: the smallest part of a model that is gathered and released as a whole. The engine gives it views of
// its gathered parameters and of its gradient buckets; the unit runs forward and backward on them.
//
// Call order, for each micro-batch: Forward, later Backward with the same slot. Parameters are readable only
// within a call (the engine may reuse their bytes between forward and backward), at the same address each
// time. Thread safety: none; one thread drives a unit. Errors: LibTorch's exceptions are caught by the
// engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

// A target that does not count in the loss.
constexpr int64_t kIgnoredTarget = -100;

// What flows through the chain of units. The first unit reads `tokens`, the last one reads `targets` and
// gives `loss` instead of hidden states.
struct UnitInput {
  at::Tensor tokens;   // [micro_batch, sequence] int64
  at::Tensor targets;  // [micro_batch, sequence] int64; kIgnoredTarget where nothing counts.
  at::Tensor hidden;   // [micro_batch, sequence, hidden]; undefined for the first unit.
};

struct UnitOutput {
  at::Tensor hidden;  // Undefined for the last unit.
  // Scalar fp32, SUM over the targets that count. Undefined for other units, and where a last unit leaves it
  // to its Backward, which has to look at the logits anyway.
  at::Tensor loss;
};

// What a forward keeps until its backward.
enum class Keep {
  kAll,        // Everything that backward needs.
  kSelective,  // Without what cheap element-wise operations compute again.
  kInput,      // The input alone: backward runs the forward again.
  kNothing,    // There will be no backward.
};

class Unit {
 public:
  virtual ~Unit() = default;

  // Binds the unit to its parameters: views into the gathered buckets, in UnitFacts' order, followed by those
  // of the unit that it borrows from. Called once.
  virtual void Bind(const std::vector<at::Tensor>& params) = 0;

  // `slot` tells micro-batches in flight apart.
  virtual UnitOutput Forward(int slot, const UnitInput& input, Keep keep) = 0;

  // `grad_hidden` is the gradient of UnitOutput::hidden, undefined for the last unit; `grad_loss`, a scalar
  // fp32 tensor on the device, is the gradient of UnitOutput::loss (a tensor, since only the device knows the
  // loss scale). Writes, or with `accumulate` adds, each parameter's gradient into `param_grads`: views of
  // the reduce buffers in Bind's order, in a type that may be narrower or wider than the parameters',
  // undefined where a parameter is frozen. Returns the gradient of the input's hidden states (undefined for
  // the first unit). Frees what Forward kept for the slot.
  virtual at::Tensor Backward(int slot, const at::Tensor& grad_hidden, const at::Tensor& grad_loss,
                              bool accumulate, const std::vector<at::Tensor>& param_grads) = 0;

  // What UnitOutput::loss left to the Backward that ran last, once; undefined where it left nothing.
  virtual at::Tensor TakeLoss() { return at::Tensor(); }

  // Initial values of elements [begin, begin + elements) of own parameter `index`, flat fp32 on the CPU. A
  // function of the seed, the two names and the element's number, so it is the same for every world size and
  // strategy, and a rank draws its own pieces only.
  virtual at::Tensor InitialValue(int index, uint64_t seed, int64_t begin, int64_t elements) const = 0;
};

}  // namespace fsdpd
