// The head of the native models: final RMSNorm, output projection, cross-entropy summed over the targets that
// count. The output matrix is the unit's own or, with tied embeddings, borrowed.
//
// Logits exist for kLossChunkTokens tokens at a time: 262 MB of bf16 instead of 2.1 GB at Llama-3's
// vocabulary and 8192 tokens, plus (on the CPU) the chunk's fp32 probabilities. In training they are computed
// once: of a chunk's logits ForwardBackward makes the loss, their gradient in place, and both products of it.
//
// Keeps nothing between calls. ForwardBackward holds, beside a chunk's logits: input, normed input and its
// gradient (compute type), targets (int64), and for each token 1/rms in fp32.
//
// Of ranks that share matrices each has the output's rows of a part of the vocabulary, and so that part of
// every token's logits: they exchange one number a token, the log-sum-exp of what each has, and a rank's loss
// is that of the targets that are words of its part. The norm is of the rank's part of the tokens
// (token_parts.h).
//
// A matrix's gradient in a 16-bit buffer is rounded once for each chunk, in an fp32 buffer never.
#pragma once

#include "fsdp/model/native/native_unit.h"

namespace fsdpd {

class NativeHead : public NativeUnit {
 public:
  NativeHead(UnitFacts facts, at::ScalarType compute, double norm_epsilon);

  // REQUIRES: Keep::kNothing.
  UnitOutput Forward(int slot, const UnitInput& input, Keep keep) override;
  LossAndGrad ForwardBackward(int slot, const UnitInput& input, const at::Tensor& grad_loss,
                              const ParamGrads& grads) override;
  // Comes with its forward alone.
  at::Tensor Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                      WeightGrads when) override;
  void VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) override {}

 private:
  // Of a chunk's rows.
  struct Loss {
    at::Tensor sum;          // Over the targets that are this rank's words.
    at::Tensor log_sum_exp;  // Over all words.
    at::Tensor targets;      // As CrossEntropyBackward wants them.
  };
  Loss LossOf(const at::Tensor& logits, const at::Tensor& targets) const;

  // The loss and the normed input's gradient; writes the output matrix's.
  LossAndGrad LossBackward(const at::Tensor& normed, const at::Tensor& targets, const at::Tensor& grad_loss,
                           bool accumulate, const at::Tensor& output_grad) const;

  const double norm_epsilon_;
};

}  // namespace fsdpd
