// The head of the native models: final RMSNorm, output projection, cross-entropy summed over the targets that
// count. The output matrix is the unit's own or, with tied embeddings, borrowed.
//
// Logits exist for kLossChunkTokens tokens at a time: 262 MB of bf16 instead of 2.1 GB at Llama-3's
// vocabulary and 8192 tokens, plus the chunk's fp32 probabilities. Backward computes a chunk's logits again
// (12 ms of an 8B step by its FLOPs): their gradient cannot be computed in forward, where the loss scale is
// not known and the matrix's gradient would need a buffer of its own.
//
// Keeps, whatever the policy: input, normed input (compute type), targets (int64), and for each token two
// fp32 numbers, 1/rms and log-sum-exp.
//
// A matrix's gradient in a 16-bit buffer is rounded once for each chunk, in an fp32 buffer never.
#pragma once

#include "fsdp/model/native_unit.h"

namespace fsdpd {

class NativeHead : public NativeUnit {
 public:
  NativeHead(UnitFacts facts, at::ScalarType compute, double norm_epsilon);

  UnitOutput Forward(int slot, const UnitInput& input, Keep keep) override;
  at::Tensor Backward(int slot, const at::Tensor& grad_hidden, const at::Tensor& grad_loss, bool accumulate,
                      const std::vector<at::Tensor>& param_grads) override;

 private:
  struct Kept {
    at::Tensor x;  // [tokens x hidden], as `normed`.
    at::Tensor normed;
    at::Tensor rstd;  // [tokens x 1] fp32, as `log_sum_exp`.
    at::Tensor log_sum_exp;
    at::Tensor targets;  // [micro_batch x sequence]
  };

  // The normed input's gradient; writes the output matrix's.
  at::Tensor LossBackward(const Kept& kept, const at::Tensor& grad_loss, bool accumulate,
                          const at::Tensor& output_grad) const;

  const double norm_epsilon_;
  KeptSlots<Kept> kept_;
};

}  // namespace fsdpd
