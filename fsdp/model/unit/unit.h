// A unit: the smallest part of a model that is gathered and released as a whole. The engine gives it views of
// its gathered parameters and of its gradient buckets; the unit runs forward and backward on them.
//
// Call order: Bind once. Then for each micro-batch Forward, later Backward with the same slot, and
// BackwardWeights where Backward was told that it follows. The last unit, in training, gets ForwardBackward
// in their place, so that logits need not be computed twice, and Forward in evaluation alone. Parameters are
// readable only within a call (the engine may reuse their bytes between forward and backward), at the same
// address each time. Thread safety: one thread drives a unit, except that several call InitialValue().
// Errors: LibTorch's exceptions are caught by the engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "fsdp/kernels/normal_numbers.h"
#include "fsdp/model/unit/documents.h"
#include "fsdp/model/unit/unit_context.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

// A target that does not count in the loss.
constexpr int64_t kIgnoredTarget = -100;

// A parameter as a unit reads it.
struct BoundParam {
  BoundParam(at::Tensor values) : data(std::move(values)) {}  // NOLINT: most are nothing but data.

  at::Tensor data;
  at::Tensor scales;  // What data of a scaled type is multiplied with; undefined for the others.
};

// What flows through the chain of units. The first unit reads `tokens`, the last one reads `targets` and
// gives `loss` instead of hidden states.
struct UnitInput {
  at::Tensor tokens;   // [micro_batch, sequence] int64
  at::Tensor targets;  // [micro_batch, sequence] int64; kIgnoredTarget where nothing counts.
  // [micro_batch, sequence, hidden]; undefined for the first unit. Where ranks share matrices, of the rank's
  // part of these tokens: [1, part, hidden].
  at::Tensor hidden = {};
  // Of each token within its document: [micro_batch, sequence] int64, below the sequence's length. Undefined:
  // each row counts from 0.
  at::Tensor positions = {};
  Documents documents = {};
};

struct UnitOutput {
  at::Tensor hidden;  // Undefined for the last unit.
  // Scalar fp32, SUM over the targets that count; where ranks share matrices they share these out. Undefined
  // for other units.
  at::Tensor loss;
};

// What a forward keeps until its backward.
enum class Keep {
  kAll,        // Everything that backward needs.
  kSelective,  // Without what cheap element-wise operations compute again.
  kInput,      // The input alone: backward runs the forward again.
  kNothing,    // There will be no backward.
};

// Where the gradients of parameters go: views of the reduce buffers in Bind's order, in a type that may be
// narrower or wider than the parameters', undefined where a parameter is frozen. They are overwritten, or
// with `accumulate` added to.
struct ParamGrads {
  const std::vector<at::Tensor>& into;
  bool accumulate = false;
};

// When the gradients of parameters are computed. Others wait for the input's; nobody but the reduction waits
// for these.
enum class WeightGrads {
  kNow,    // By Backward.
  kLater,  // By BackwardWeights, as far as the unit can put them off.
};

class Unit {
 public:
  virtual ~Unit() = default;

  // Binds the unit to its parameters: views into the gathered buckets, in UnitFacts' order, followed by those
  // of the unit that it borrows from. `context` outlives every call.
  virtual void Bind(const std::vector<BoundParam>& params, UnitContext* context) = 0;

  // `slot` tells micro-batches in flight apart.
  virtual UnitOutput Forward(int slot, const UnitInput& input, Keep keep) = 0;

  // `grad_out` is the gradient of UnitOutput::hidden, for the last unit that of UnitOutput::loss. Returns the
  // gradient of the input's hidden states (undefined for the first unit) and frees what Forward kept for the
  // slot, but for what BackwardWeights needs.
  virtual at::Tensor Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                              WeightGrads when) = 0;

  // After a Backward with kLater, into the same gradients: what that one left. Does nothing for a unit that
  // puts nothing off.
  virtual void BackwardWeights(int /*slot*/, const ParamGrads& /*grads*/) {}

  // Of the last unit, the two at once; `grad_loss` is a scalar fp32 tensor on the device, since only the
  // device knows the loss scale. By itself it is Forward and then Backward.
  struct LossAndGrad {
    at::Tensor loss;
    at::Tensor grad_hidden;
  };
  virtual LossAndGrad ForwardBackward(int slot, const UnitInput& input, const at::Tensor& grad_loss,
                                      const ParamGrads& grads);

  // Hands out each tensor that Forward keeps for the slot, its input included; the batch's own (tokens,
  // positions) not. Who takes one away puts one with the same values, shape and strides in its place before
  // Backward; others may hold the input, so nothing is written in place. A unit that cannot part with what it
  // keeps hands out what it can.
  virtual void VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) = 0;

  // Whether its calls may be recorded once and then done again without the unit (fsdp/lane/lane_graph.h): it
  // reads nothing back from the device, and what the host decides is the same for every micro-batch.
  virtual bool Recordable() const { return false; }
  // Drops what Forward keeps, for all slots: recording ended in the middle.
  virtual void Forget() {}

  // Initial values of elements [begin, begin + elements) of own parameter `index`, flat fp32 on the CPU. A
  // function of the seed, the two names and the element's number, so it is the same for every world size and
  // strategy, and a rank draws its own pieces only.
  virtual at::Tensor InitialValue(int index, uint64_t seed, int64_t begin, int64_t elements) const = 0;

  // The same values in a form that a device can draw; nullopt: only InitialValue() has them.
  virtual std::optional<kernels::NormalNumbers> InitialNumbers(int /*index*/, uint64_t /*seed*/) const {
    return std::nullopt;
  }
};

}  // namespace fsdpd
