// Layer primitives as free functions, forward and backward: LibTorch's operators on the CPU, one fused kernel
// each on CUDA (fsdp/kernels). The order of all sums depends only on shapes: equal inputs give equal bits.
//
// Tensors are [rows x width]; a row is a token (or one head of a token). Nothing is modified in place, except
// where a name with "Into" or a comment states it. Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// ---- Gradients of parameters. `into` is a view of a reduce buffer, in the buffer's type. It is overwritten,
// or with `accumulate` added to; undefined for a frozen parameter: nothing is computed.

// `grad` may have any type.
void GradInto(const at::Tensor& grad, bool accumulate, const at::Tensor& into);

// grad_out^T x, for y = x weight^T. Written directly from the product's accumulators if the types are equal
// or, on CUDA, if the buffer is fp32; otherwise through a temporary in the compute type.
void WeightGradInto(const at::Tensor& grad_out, const at::Tensor& x, bool accumulate, const at::Tensor& into);

// The sum over rows, in fp32.
void BiasGradInto(const at::Tensor& grad_out, bool accumulate, const at::Tensor& into);

// Sums the rows of `grad` by token. Allocates no [vocabulary x hidden] temporary, except on the CPU if the
// buffer is not fp32, where rows are first summed in fp32.
void EmbeddingGradInto(const at::Tensor& grad, const at::Tensor& tokens, bool accumulate,
                       const at::Tensor& into);

// ---- RMSNorm: y = x / rms(x) * weight, in fp32 and rounded once.

struct Normed {
  at::Tensor y;
  at::Tensor rstd;  // [rows x 1] fp32: 1 / rms.
};

// `y_into`, if defined, receives y.
Normed RmsNormForward(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                      const at::Tensor& y_into = {});

// Returns the gradient of x and writes that of the weight. `residual` is the gradient that reaches x over a
// residual connection, and is added; it may be undefined. `y_into`, if defined, receives the recomputed y,
// with the bits of forward, for products that need the output, which is not saved; it may alias `grad_y`.
// `y_largest`, if not null, receives the column maxima of |y| for Fp8Columns if computing them is free.
at::Tensor RmsNormBackward(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& rstd,
                           const at::Tensor& weight, const at::Tensor& residual, bool accumulate,
                           const at::Tensor& weight_grad_into, const at::Tensor& y_into = {},
                           at::Tensor* y_largest = nullptr);

// ---- SwiGLU: silu(gate) * up. A row of `gate_up` is all gates followed by all ups.

at::Tensor SwigluForward(const at::Tensor& gate_up);

// Overwrites gate_up with its gradient, and `grad_product` with the recomputed product, which the gradient of
// the next matrix needs.
void SwigluBackward(const at::Tensor& grad_product, const at::Tensor& gate_up);

// ---- Reductions over ranks. Sums the parts in `sent` and `received` (see UnitContext::SendParts) in rank
// order and in fp32, plus `addend` if defined, and rounds once to their common type.

at::Tensor SumOfParts(const at::Tensor& sent, const at::Tensor& received, int64_t rank,
                      const at::Tensor& addend = {});

// ---- Vocabulary sharding: which of the tokens (or targets) belong to part `rank` of the vocabulary, with
// `words` tokens per part. All others are replaced by tokens spread evenly over the part, and flagged in
// `elsewhere`.

struct LocalVocab {
  at::Tensor words;      // Index within the part.
  at::Tensor elsewhere;  // In another part, or in none (kIgnoredTarget).
};

LocalVocab LocalVocabOf(const at::Tensor& tokens, int64_t words, int64_t rank);

// ---- Cross-entropy of a chunk of rows. A row with target kIgnoredTarget contributes neither loss nor
// gradient. A row with target kTargetElsewhere, a token in another rank's part of the vocabulary, contributes
// no loss, but its gradient with respect to the local logits, given `log_sum_exp` over the whole vocabulary.

constexpr int64_t kTargetElsewhere = -1;

struct ChunkLoss {
  at::Tensor loss;         // fp32 scalar: the sum over the targets that count.
  at::Tensor log_sum_exp;  // [rows x 1] fp32.
};

ChunkLoss CrossEntropyForward(const at::Tensor& logits, const at::Tensor& targets);

// Overwrites `logits` with their gradient, multiplied by the scalar `grad_loss` in fp32 before rounding.
void CrossEntropyBackward(const at::Tensor& log_sum_exp, const at::Tensor& targets,
                          const at::Tensor& grad_loss, at::Tensor* logits);

}  // namespace fsdpd
