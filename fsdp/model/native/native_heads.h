// Heads of queries and keys: rotary positions, and RMSNorm of each head before them. By LibTorch's operators
// on the CPU, by one kernel of ours each on CUDA (fsdp/kernels). Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// ---- Rotary positions: the pair (x[i], x[i + half]) of each head turns by position * frequency[i], in fp32
// and rounded once. YaRN's tables have its scale in them.

struct Rotary {
  at::Tensor cos;  // [sequence x 1 x half] fp32.
  at::Tensor sin;
};

Rotary MakeRotary(const LlamaConfig& config, int64_t sequence_length, at::Device device);

// [micro_batch, sequence, heads, head_size], each with heads of its own. Tokens may lie further apart than
// their heads take, as where queries, keys and values stand side by side in a row.
struct QueriesAndKeys {
  at::Tensor q;
  at::Tensor k;
};

// In place. `positions`: UnitInput's.
void RotateForward(const Rotary& rotary, const at::Tensor& positions, const QueriesAndKeys& heads);
// The rotation's inverse, which is its transpose. `into` may be `grads`.
void RotateBackward(const Rotary& rotary, const at::Tensor& positions, const QueriesAndKeys& grads,
                    const QueriesAndKeys& into);

// In place, of heads of which a part is rotated: that part, [micro_batch, sequence, heads, 2 half], anywhere
// in memory. `direction`: 1, or -1 for the inverse. `interleaved`: pairs are neighbours. By LibTorch's
// operators on CUDA too.
void RotatePart(const Rotary& rotary, const at::Tensor& positions, double direction, bool interleaved,
                const at::Tensor& part);

// ---- RMSNorm over each head, and the rotation of what comes of it: on CUDA in one pass, rounded once.

// Weights, [head_size] each.
struct HeadNorms {
  at::Tensor q;
  at::Tensor k;
  double epsilon = 0;
};

struct NormedHeads {
  QueriesAndKeys turned;  // Tokens one after the other.
  at::Tensor q_rstd;      // [tokens * heads x 1] fp32: 1 / rms of each.
  at::Tensor k_rstd;
};

NormedHeads NormAndRotate(const Rotary& rotary, const at::Tensor& positions, const QueriesAndKeys& heads,
                          const HeadNorms& norms);

// Where the weights' gradients go, as GradInto (native_ops.h) takes them.
struct HeadNormGrads {
  at::Tensor q;
  at::Tensor k;
  bool accumulate = false;
};

// From the gradients of `of.turned`, which may be overwritten; `of` has both 1 / rms. What NormAndRotate took
// as `heads` is overwritten with its gradients.
void NormAndRotateBackward(const Rotary& rotary, const at::Tensor& positions, const QueriesAndKeys& grads,
                           const NormedHeads& of, const HeadNorms& norms, const HeadNormGrads& into,
                           const QueriesAndKeys& heads);

}  // namespace fsdpd
