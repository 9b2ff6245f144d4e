// Unit: the smallest part of a model that is gathered and released as a whole. The engine provides views of
// its gathered parameters and of its gradient buckets; the unit runs forward and backward on them.
//
// Call order: Bind once. Then for each micro-batch Forward, later Backward with the same slot, and
// BackwardWeights if Backward was called with kLater. In training, the last unit gets ForwardBackward
// instead, so that logits are computed once; it gets Forward only in evaluation. Parameters are readable only
// within a call (the engine may reuse their bytes between forward and backward), at the same address each
// time. Thread safety: one thread drives a unit, except that InitialValue() is called from several. Errors:
// the engine catches LibTorch's exceptions.
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

// Target value that is excluded from the loss (PyTorch's ignore_index).
constexpr int64_t kIgnoredTarget = -100;

// A parameter as the unit reads it.
struct BoundParam {
  BoundParam(at::Tensor values)
      : data(std::move(values)) {}  // NOLINT: implicit by design; most parameters have only data.

  at::Tensor data;
  at::Tensor scales;  // Scales of a scaled type (FP8): values are data * scales. Undefined for other types.
};

// What flows through the chain of units. The first unit reads `tokens`; the last one reads `targets` and
// returns `loss` instead of hidden states.
struct UnitInput {
  at::Tensor tokens;   // [micro_batch, sequence] int64
  at::Tensor targets;  // [micro_batch, sequence] int64; kIgnoredTarget for targets that do not count.
  // [micro_batch, sequence, hidden]; undefined for the first unit. With tensor parallelism, only the rank's
  // part of these tokens: [1, part, hidden]. One-dimensional in packages.
  at::Tensor hidden = {};
  // Position of each token within its document: [micro_batch, sequence] int64, below the sequence length.
  // Undefined: every row counts from 0.
  at::Tensor positions = {};
  Documents documents = {};
};

struct UnitOutput {
  at::Tensor hidden;  // Undefined for the last unit.
  // Scalar fp32, sum over the targets that count; tensor-parallel ranks each have a part of that sum.
  // Undefined for other units.
  at::Tensor loss;
};

// Activation checkpointing mode: what a forward saves for its backward.
enum class ActivationSaving {
  kAll,        // Everything that backward needs.
  kSelective,  // Without the results of cheap element-wise operations, which are recomputed.
  kInput,      // Only the input: backward reruns the forward.
  kNothing,    // No backward follows (evaluation).
};

// Destinations of parameter gradients: views of the reduce buffers in the order of Bind, of a type that may
// differ from the parameters'; undefined for frozen parameters. They are overwritten, or with `accumulate`
// added to.
struct ParamGrads {
  const std::vector<at::Tensor>& into;
  bool accumulate = false;
};

// When parameter gradients are computed. The previous stage waits for the input's gradient, but only the
// reduction waits for these, so zero-bubble pipeline schedules defer them.
enum class WeightGrads {
  kNow,    // In Backward.
  kLater,  // In BackwardWeights, as far as the unit can defer them.
};

class Unit {
 public:
  virtual ~Unit() = default;

  // Binds the unit to its parameters: views of the gathered buckets, in the order of UnitFacts, followed by
  // those of the unit it borrows from (tied embeddings). `context` must outlive every call.
  virtual void Bind(const std::vector<BoundParam>& params, UnitContext* context) = 0;

  // `slot` identifies the micro-batch among those in flight.
  virtual UnitOutput Forward(int slot, const UnitInput& input, ActivationSaving saving) = 0;

  // `grad_out` is the gradient of UnitOutput::hidden, or of UnitOutput::loss for the last unit. Returns the
  // gradient of the input's hidden states (undefined for the first unit). Frees what Forward saved for the
  // slot, except for what BackwardWeights needs.
  virtual at::Tensor Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                              WeightGrads when) = 0;

  // Computes the parameter gradients that a Backward with kLater deferred, into the same destinations. Does
  // nothing for a unit that defers none.
  virtual void BackwardWeights(int /*slot*/, const ParamGrads& /*grads*/) {}

  // Forward and backward of the last unit in one call. `grad_loss` is a scalar fp32 tensor on the device,
  // since only the device knows the loss scale. By default calls Forward, then Backward.
  struct LossAndGrad {
    at::Tensor loss;
    at::Tensor grad_hidden;
  };
  virtual LossAndGrad ForwardBackward(int slot, const UnitInput& input, const at::Tensor& grad_loss,
                                      const ParamGrads& grads);

  // Calls `visit` with each tensor that Forward saved for the slot, including its input but not the batch
  // (tokens, positions), so that activations can be offloaded. A caller that takes a tensor must put one with
  // the same values, shape and strides in its place before Backward. Others may hold the input, so tensors
  // must not be modified in place. A unit that cannot give up a saved tensor skips it.
  virtual void VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) = 0;

  // Whether its calls may be captured once and replayed without the unit (fsdp/lane/lane_graph.h, CUDA
  // graphs): it never reads from the device, and the host's decisions are the same for every micro-batch.
  virtual bool Recordable() const { return false; }
  // Drops the saved activations of all slots, after a capture was aborted.
  virtual void Forget() {}

  // Initial values of elements [begin, begin + elements) of the unit's own parameter `index`, as flat fp32 on
  // the CPU. A function of the seed, the two names and the element's index: independent of world size and
  // strategy, and a rank computes only its own shards.
  virtual at::Tensor InitialValue(int index, uint64_t seed, int64_t begin, int64_t elements) const = 0;

  // The same values in a form that a device can generate; nullopt: only InitialValue() provides them.
  virtual std::optional<kernels::NormalNumbers> InitialNumbers(int /*index*/, uint64_t /*seed*/) const {
    return std::nullopt;
  }
};

}  // namespace fsdpd
