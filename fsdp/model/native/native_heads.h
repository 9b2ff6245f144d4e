// Rotary embedding of query and key heads, and QK-norm (RMSNorm of each head) before it. Uses LibTorch's
// operators on the CPU, and one fused kernel each on CUDA (fsdp/kernels). Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// ---- Rotary embedding: the pair (x[i], x[i + half]) of each head is rotated by position * frequency[i], in
// fp32, rounded once. YaRN's attention scale is folded into the tables.

struct Rotary {
  at::Tensor cos;  // [sequence x 1 x half] fp32.
  at::Tensor sin;
};

Rotary MakeRotary(const LlamaConfig& config, int64_t sequence_length, at::Device device);

// [micro_batch, sequence, heads, head_size], each with its own number of heads. Tokens may be strided, as in
// a packed QKV row.
struct QueriesAndKeys {
  at::Tensor q;
  at::Tensor k;
};

// In place. `positions`: UnitInput's.
void RotateForward(const Rotary& rotary, const at::Tensor& positions, const QueriesAndKeys& heads);
// The inverse of the rotation, which is its transpose. `into` may alias `grads`.
void RotateBackward(const Rotary& rotary, const at::Tensor& positions, const QueriesAndKeys& grads,
                    const QueriesAndKeys& into);

// In-place rotation for heads that are rotated only in part: `part` is that part, [micro_batch, sequence,
// heads, 2 half], with any strides. `direction`: 1, or -1 for the inverse. `interleaved`: pairs are
// neighbors. Uses LibTorch's operators on CUDA too.
void RotatePart(const Rotary& rotary, const at::Tensor& positions, double direction, bool interleaved,
                const at::Tensor& part);

// ---- QK-norm followed by the rotation: on CUDA one pass, rounded once.

// Weights, [head_size] each.
struct HeadNorms {
  at::Tensor q;
  at::Tensor k;
  double epsilon = 0;
};

struct NormedHeads {
  QueriesAndKeys transposed;  // Contiguous.
  at::Tensor q_rstd;          // [tokens * heads x 1] fp32: 1 / rms of each.
  at::Tensor k_rstd;
};

NormedHeads NormAndRotate(const Rotary& rotary, const at::Tensor& positions, const QueriesAndKeys& heads,
                          const HeadNorms& norms);

// Destinations of the weights' gradients, with the semantics of GradInto (native_ops.h).
struct HeadNormGrads {
  at::Tensor q;
  at::Tensor k;
  bool accumulate = false;
};

// Backward from the gradients of `of.turned`, which may be overwritten; `of` supplies both 1/rms. `heads`,
// the input of NormAndRotate, is overwritten with its gradients.
void NormAndRotateBackward(const Rotary& rotary, const at::Tensor& positions, const QueriesAndKeys& grads,
                           const NormedHeads& of, const HeadNorms& norms, const HeadNormGrads& into,
                           const QueriesAndKeys& heads);

}  // namespace fsdpd
