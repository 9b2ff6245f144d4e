// The layers' mathematics as free functions, forward and backward: by LibTorch's operators on the CPU, by one
// kernel of ours each on CUDA (fsdp/kernels). All sums run in an order that depends on shapes alone: equal
// inputs give equal bits.
//
// Matrices here are [rows x width]: a row is a token (or one head of a token). Nothing is written in place
// but what a name with "Into" or a comment says. Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// ---- Gradients of parameters. `into` is a view of a reduce buffer in whatever type the buffer has,
// overwritten, or added to with `accumulate`; undefined (a frozen parameter): nothing happens.

// `grad` in any type.
void GradInto(const at::Tensor& grad, bool accumulate, const at::Tensor& into);

// grad_out^T x, of y = x weight^T. Straight from the product's accumulators into the buffer where the types
// are equal or, on CUDA, the buffer is fp32; otherwise by way of one matrix in the compute type.
void WeightGradInto(const at::Tensor& grad_out, const at::Tensor& x, bool accumulate, const at::Tensor& into);

// The sum over rows, in fp32.
void BiasGradInto(const at::Tensor& grad_out, bool accumulate, const at::Tensor& into);

// The sum of `grad`'s rows by token. No [vocabulary x hidden] tensor besides the buffer, except on the CPU
// for a buffer that is not fp32: there rows are first added in fp32.
void EmbeddingGradInto(const at::Tensor& grad, const at::Tensor& tokens, bool accumulate,
                       const at::Tensor& into);

// ---- RMSNorm: y = x / rms(x) * weight, in fp32 and rounded once.

struct Normed {
  at::Tensor y;
  at::Tensor rstd;  // [rows x 1] fp32: 1 / rms.
};

// `y_into`, where it is given, takes y.
Normed RmsNormForward(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                      const at::Tensor& y_into = {});

// Returns x's gradient and adds the weight's to its buffer. In a residual block x went past the norm too, and
// `residual` is the gradient that comes back that way: it is added. May be undefined. `y_into`, where it is
// given, takes y again, with the bits that forward had, for a gradient that needs what nobody kept; it may be
// `grad_y` itself. `y_largest`, where it is given: then set to the largest magnitudes of y's columns, for
// Fp8Columns, if they cost nothing to find.
at::Tensor RmsNormBackward(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& rstd,
                           const at::Tensor& weight, const at::Tensor& residual, bool accumulate,
                           const at::Tensor& weight_grad_into, const at::Tensor& y_into = {},
                           at::Tensor* y_largest = nullptr);

// ---- SwiGLU: silu(gate) * up. A row of `gate_up` has its gates and then its ups.

at::Tensor SwigluForward(const at::Tensor& gate_up);

// Overwrites gates and ups with their gradients, and `grad_product` with the product, which the gradient of
// the matrix after it needs and nobody has kept.
void SwigluBackward(const at::Tensor& grad_product, const at::Tensor& gate_up);

// ---- Sums over ranks. Of `sent` and `received`, as UnitContext::SendParts has them, the sum over ranks in
// their order and in fp32, and `addend` to it where it is given, rounded once to its type, which all have.

at::Tensor SumOfParts(const at::Tensor& sent, const at::Tensor& received, int64_t rank,
                      const at::Tensor& addend = {});

// ---- Where ranks have parts of the vocabulary: which of the tokens, or targets, are words of the `rank`-th
// part of so many words. The others stand for words spread over the part, and `elsewhere` is true of them.

struct OwnWords {
  at::Tensor words;      // Within the part.
  at::Tensor elsewhere;  // Of another part, or of none (kIgnoredTarget).
};

OwnWords OwnWordsOf(const at::Tensor& tokens, int64_t words, int64_t rank);

// ---- Cross-entropy of one chunk of rows. A row whose target is kIgnoredTarget adds nothing, and its
// gradient is zero. Nor does one whose target is kTargetElsewhere, a word of another rank's, whose logits are
// not here; but its gradient is that of the words that are, by the `log_sum_exp` over all words.

constexpr int64_t kTargetElsewhere = -1;

struct ChunkLoss {
  at::Tensor loss;         // Scalar fp32: the sum over the targets that count.
  at::Tensor log_sum_exp;  // [rows x 1] fp32.
};

ChunkLoss CrossEntropyForward(const at::Tensor& logits, const at::Tensor& targets);

// Overwrites `logits` with their gradient, scaled by the scalar `grad_loss` in fp32 before it is rounded.
void CrossEntropyBackward(const at::Tensor& log_sum_exp, const at::Tensor& targets,
                          const at::Tensor& grad_loss, at::Tensor* logits);

}  // namespace fsdpd
