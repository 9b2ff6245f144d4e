// Multi-head latent attention (DeepSeek-V2 and V3), between the block's first product and its last.
//
// The first product makes of each token, side by side in a row: its queries, or the latent that they are made
// of; the latent of keys and values; and the rotated part of the key, which all heads share. A latent is
// normed and multiplied for what is made of it. Of a head's query and key one part is rotated; its key is
// made of both for attention's kernel, and again for its backward: kept is what it is made of, which is
// narrower.
//
// Kernels take queries, keys and values of one width (KernelHeadSize), so what is narrower has zeros beside
// it, which add nothing to scores and give zeros: on CUDA there is no other way for flash attention, and on
// the CPU none either.
//
// Of T tokens, h heads, latents of r and (of queries) p numbers, and parts of a head of n (plain), t
// (rotated) and v (value), the block keeps in place of q, k, v and attention's output (native_block.h), with
// rows of D = [p, else h (n + t)] + r + t numbers
//
//   kAll        T c (D + h (n + v) + h v [+ h (n + t)]) + 4 T (h + 1 [+ 1])
//   kSelective  T c (D + h v) + 4 T h
//               without what is made of latents, whose products run again.
//
// [ ]: where queries have a latent.
// Where ranks share samples, kAll is without h (n + v) and one of the statistics: below.
//
// Ranks that share matrices have those that make heads of latents by head, and latents of all tokens each.
// Ranks that share samples send each other latents, which are far narrower than keys and values: each makes
// those of whole samples for its own queries, in forward and again in backward, and keeps none; what comes
// back are latents' gradients. Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include "fsdp/model/native/native_attention.h"
#include "fsdp/model/native/native_heads.h"
#include "fsdp/model/unit/unit_context.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// q_norm and wq_b are undefined where queries are made of the token itself.
struct LatentParams {
  at::Tensor q_norm;
  at::Tensor wq_b;
  at::Tensor kv_norm;
  at::Tensor wkv_b;
};

// What is made of latents.
struct LatentHeads {
  at::Tensor q;       // [micro_batch x sequence x heads x head_size], rotated; undefined without a latent.
  at::Tensor kv;      // [micro_batch x sequence x heads x (plain + value)], of whole samples.
  at::Tensor q_rstd;  // [tokens x 1] fp32: 1 / rms of the latents.
  at::Tensor kv_rstd;
};

// Of the product with wq_b or wkv_b: its output's gradient, and its input.
struct LatentProduct {
  at::Tensor grad_out;
  at::Tensor x;
};

// A micro-batch's rows of the first product, [tokens x width], and what else its attention reads.
struct LatentRows {
  at::Tensor rows;
  at::IntArrayRef micro_batch;  // Samples, and tokens of each.
  at::Tensor positions;         // UnitInput's.
  // Where ranks share samples, what keys and values are made of: the ends of all ranks' rows, in order,
  // [micro_batch x sequence x (latent + rotated)].
  at::Tensor samples = {};
};

class LatentAttention {
 public:
  LatentAttention(const LlamaConfig& config, Rotary rotary);

  // The rotated part of the key, and of queries that are there already: in place, once.
  void Rotate(const LatentRows& of) const;
  // LatentRows::samples, of rotated rows; and of their gradients the rows'.
  at::Tensor SamplesOf(const LatentRows& of, UnitContext* context) const;
  void SamplesBackward(const LatentRows& of, UnitContext* context) const;

  // Of LatentHeads those of keys and values, and those of queries.
  void MakeKeys(const LatentRows& of, const LatentParams& params, LatentHeads* heads) const;
  void MakeQueries(const LatentRows& of, const LatentParams& params, LatentHeads* heads) const;

  // [micro_batch x sequence x heads x value]
  AttentionOutput Attend(const LatentRows& of, const LatentHeads& heads, const Documents& documents,
                         const UnitContext& context) const;
  // As kernels give it.
  AttentionInput AttendBackward(at::Tensor grad, const LatentRows& of, const LatentHeads& heads,
                                const AttentionOutput& attended, const Documents& documents,
                                const UnitContext& context) const;

  // From gradients of keys and values, or of queries, to those of the rows, or of samples, which take the
  // place of what they are of; so does heads.kv. Norms' gradients go to `norm_into`, as GradInto
  // (native_ops.h) takes them. Nothing is returned of queries without a latent.
  LatentProduct KeysBackward(const at::Tensor& grad_k, const at::Tensor& grad_v, const LatentRows& of,
                             const LatentHeads& heads, const LatentParams& params, bool accumulate,
                             const at::Tensor& norm_into) const;
  LatentProduct QueriesBackward(const at::Tensor& grad_q, const LatentRows& of, const LatentHeads& heads,
                                const LatentParams& params, bool accumulate,
                                const at::Tensor& norm_into) const;

 private:
  bool HasQueryLatent() const { return latent_.query_rank > 0; }
  int64_t LatentBegin() const { return HasQueryLatent() ? latent_.query_rank : heads_ * head_size_; }
  at::Tensor Queries(const LatentRows& of) const;  // Of rows that have them: by head.
  // What keys and values are made of, [tokens x latent], and [micro_batch x sequence x 1 x rotated].
  at::Tensor KeyLatents(const LatentRows& of) const;
  at::Tensor RotatedKey(const LatentRows& of) const;
  at::Tensor OwnSamples(const LatentRows& of) const;  // The rank's own, in its rows.
  at::Tensor HeadsOf(const at::Tensor& latents, const at::Tensor& norm, const at::Tensor& matrix,
                     at::Tensor* rstd) const;  // [tokens x heads x width]
  at::Tensor RotatedPart(const at::Tensor& heads) const;
  AttentionInput Input(const LatentRows& of, const LatentHeads& heads) const;
  // From the gradient of what is made of the latent, [begin, begin + width) of the rows, to that of the rows.
  LatentProduct LatentBackward(at::Tensor grad_out, const at::Tensor& matrix, const at::Tensor& latent,
                               const at::Tensor& rstd, const at::Tensor& norm, bool accumulate,
                               const at::Tensor& norm_into) const;

  const LatentConfig latent_;
  const Rotary rotary_;
  const int64_t heads_;
  const int64_t head_size_;  // Of a query and its key.
  const int64_t kernel_size_;
  const double scale_;  // Of scores.
};

}  // namespace fsdpd
