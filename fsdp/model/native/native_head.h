// Language model head of the native models: final RMSNorm, output projection, and cross-entropy summed over
// the targets that count. The output matrix is the unit's own or, with tied embeddings, borrowed.
//
// Logits are materialized for kLossChunkTokens tokens at a time: 262 MB of bf16 instead of 2.1 GB for Llama
// 3's vocabulary and 8192 tokens, plus (on the CPU) the chunk's fp32 probabilities. In training they are
// computed once: ForwardBackward derives a chunk's loss from its logits, replaces them with their gradient in
// place, and computes both products with that.
//
// It saves nothing between calls. In addition to the logits of a chunk, ForwardBackward holds the input, the
// normed input and its gradient (compute type), the targets (int64), and 1/rms per token in fp32.
//
// Tensor parallelism: each rank has the output matrix rows of a part of the vocabulary, and therefore that
// part of every token's logits. Ranks exchange one number per token, their log-sum-exp, and a rank's loss
// covers the targets in its part of the vocabulary. The norm covers the rank's part of the tokens
// (token_parts.h).
//
// The gradient of a matrix in a 16-bit buffer is rounded once per chunk; in an fp32 buffer never.
#pragma once

#include "fsdp/model/native/native_unit.h"

namespace fsdpd {

class NativeHead : public NativeUnit {
 public:
  NativeHead(UnitFacts facts, at::ScalarType compute, double norm_epsilon);

  // REQUIRES: ActivationSaving::kNothing.
  UnitOutput Forward(int slot, const UnitInput& input, ActivationSaving saving) override;
  LossAndGrad ForwardBackward(int slot, const UnitInput& input, const at::Tensor& grad_loss,
                              const ParamGrads& grads) override;
  // Not supported: the last unit's backward runs in ForwardBackward.
  at::Tensor Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                      WeightGrads when) override;
  void VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) override {}

 private:
  // Loss over a chunk of rows.
  struct Loss {
    at::Tensor sum;          // Over the targets in this rank's part of the vocabulary.
    at::Tensor log_sum_exp;  // Over the whole vocabulary.
    at::Tensor targets;      // In the form that CrossEntropyBackward takes.
  };
  Loss LossOf(const at::Tensor& logits, const at::Tensor& targets) const;

  // Returns the loss and the gradient of the normed input; writes the gradient of the output matrix.
  LossAndGrad LossBackward(const at::Tensor& normed, const at::Tensor& targets, const at::Tensor& grad_loss,
                           bool accumulate, const at::Tensor& output_grad) const;

  const double norm_epsilon_;
};

}  // namespace fsdpd
