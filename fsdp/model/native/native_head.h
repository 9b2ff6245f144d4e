// The head of the native models: final RMSNorm, output projection, cross-entropy summed over the targets that
// count. The output matrix is the unit's own or, with tied embeddings, borrowed.
//
// Logits exist for kLossChunkTokens tokens at a time: 262 MB of bf16 instead of 2.1 GB at Llama-3's
// vocabulary and 8192 tokens, plus (on the CPU) the chunk's fp32 probabilities. In training they are computed
// once: Forward leaves the loss to Backward, which makes of a chunk's logits the loss, their gradient in
// place, and both products of it. A Forward that keeps nothing gives the loss itself.
//
// Keeps, whatever the policy: input, normed input (compute type), targets (int64), and for each token 1/rms in
// fp32.
//
// A matrix's gradient in a 16-bit buffer is rounded once for each chunk, in an fp32 buffer never.
#pragma once

#include <utility>

#include "fsdp/model/native/native_unit.h"

namespace fsdpd {

class NativeHead : public NativeUnit {
 public:
  NativeHead(UnitFacts facts, at::ScalarType compute, double norm_epsilon);

  UnitOutput Forward(int slot, const UnitInput& input, Keep keep) override;
  at::Tensor Backward(int slot, const at::Tensor& grad_hidden, const at::Tensor& grad_loss, bool accumulate,
                      const std::vector<at::Tensor>& param_grads) override;
  at::Tensor TakeLoss() override { return std::move(loss_); }

 private:
  struct Kept {
    at::Tensor x;  // [tokens x hidden], as `normed`.
    at::Tensor normed;
    at::Tensor rstd;     // [tokens x 1] fp32.
    at::Tensor targets;  // [micro_batch x sequence]
  };

  at::Tensor Loss(const at::Tensor& normed, const at::Tensor& targets) const;
  // The normed input's gradient; writes loss_ and the output matrix's gradient.
  at::Tensor LossBackward(const Kept& kept, const at::Tensor& grad_loss, bool accumulate,
                          const at::Tensor& output_grad);

  const double norm_epsilon_;
  at::Tensor loss_;
  KeptSlots<Kept> kept_;
};

}  // namespace fsdpd
