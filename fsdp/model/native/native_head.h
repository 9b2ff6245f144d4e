// Language model head: output projection and cross-entropy in chunks of tokens, as functions, and the last
// unit of the native models, which has the final RMSNorm too. The output matrix is the unit's own or, with
// tied embeddings, borrowed.
//
//   logits = cap(logit_scale * (weight @ hidden + bias)),  cap(x) = soft_cap * tanh(x / soft_cap)
//
// Logits are materialized for kLossChunkTokens tokens at a time: 262 MB of bf16 instead of 2.1 GB for Llama
// 3's vocabulary and 8192 tokens, plus (on the CPU) the chunk's fp32 probabilities. In training they are
// computed once: a chunk's loss is derived from its logits, which are then replaced with their gradient in
// place, and both products read that.
//
// NativeHead saves nothing between calls. In addition to the logits of a chunk, ForwardBackward holds the
// input, the normed input and its gradient (compute type), the targets (int64), and 1/rms per token in fp32.
//
// Tensor parallelism: each rank has the output matrix rows of a part of the vocabulary, and therefore that
// part of every token's logits. Ranks exchange one number per token, their log-sum-exp, and a rank's loss
// covers the targets in its part of the vocabulary. The norm covers the rank's part of the tokens
// (token_parts.h).
//
// The gradient of a matrix in a 16-bit buffer is rounded once per chunk; in an fp32 buffer never.
#pragma once

#include <functional>

#include "fsdp/model/native/native_unit.h"

namespace fsdpd {

struct HeadParams {
  at::Tensor weight;     // [vocab x hidden]
  at::Tensor bias = {};  // [vocab]; undefined: none.
  double logit_scale = 1;
  double soft_cap = 0;  // 0: none.
};

// Destinations as in ParamGrads; undefined for a frozen parameter.
struct HeadGrads {
  at::Tensor weight;
  at::Tensor bias = {};
  bool accumulate = false;
};

// Loss over the logits of a chunk of rows.
struct LogitsLoss {
  at::Tensor sum;          // fp32 scalar: over the targets in this rank's part of the vocabulary.
  at::Tensor log_sum_exp;  // [rows x 1] fp32: over the whole vocabulary.
  at::Tensor targets;      // In the form that CrossEntropyBackward takes.
};
using LogitsLossOf = std::function<LogitsLoss(const at::Tensor& logits, const at::Tensor& targets)>;

// The loss of a rank that has the whole vocabulary.
LogitsLoss WholeVocabularyLoss(const at::Tensor& logits, const at::Tensor& targets);

// `hidden`: [tokens x hidden]; `targets`: [tokens] int64. Call with gradient mode off.
at::Tensor HeadLoss(const at::Tensor& hidden, const at::Tensor& targets, const HeadParams& params,
                    const LogitsLossOf& loss_of = WholeVocabularyLoss);

// Returns the loss and the gradient of `hidden`, and writes the gradients of the parameters. `grad_loss` as
// in Unit::ForwardBackward.
Unit::LossAndGrad HeadLossBackward(const at::Tensor& hidden, const at::Tensor& targets,
                                   const at::Tensor& grad_loss, const HeadParams& params,
                                   const HeadGrads& grads, const LogitsLossOf& loss_of = WholeVocabularyLoss);

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
  LogitsLoss LossOf(const at::Tensor& logits, const at::Tensor& targets) const;

  const double norm_epsilon_;
};

}  // namespace fsdpd
