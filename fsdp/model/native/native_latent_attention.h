// Multi-head latent attention (DeepSeek-V2 and V3): everything between the block's first product and its
// last.
//
// The first product computes for each token, packed in a row: its queries, or the latent they are made from;
// the latent of keys and values; and the rotated part of the key, which all heads share. A latent is
// normalized and then multiplied by a matrix. One part of each head's query and key is rotated. The full key
// is assembled for the attention kernel, and again for its backward; only its narrower components are saved.
//
// Kernels require queries, keys and values of one width (KernelHeadSize), so narrower ones are padded with
// zeros, which do not change the scores and produce zero outputs. Neither flash attention on CUDA nor
// the CPU kernel supports different widths.
//
// Saved activations, for T tokens, h heads, latents of r and (queries) p elements, and head parts of n
// (plain), t (rotated) and v (value), in place of q, k, v and attention's output (native_block.h), with rows
// of D = [p, else h (n + t)] + r + t elements:
//
//   kAll        T c (D + h (n + v) + h v [+ h (n + t)]) + 4 T (h + 1 [+ 1])
//   kSelective  T c (D + h v) + 4 T h
//               without the products of latents, which are recomputed.
//
// [ ]: only if queries have a latent. With context parallelism, kAll omits h (n + v) and one of the
// statistics: see below.
//
// Tensor parallelism shards the matrices that map latents to heads by head; each rank has the latents of all
// tokens. Context parallelism all-gathers latents, which are far narrower than keys and values: each rank
// computes keys and values of whole samples for its own queries, in forward and again in backward, and saves
// none; only gradients of latents are sent back. Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include "fsdp/model/native/native_attention.h"
#include "fsdp/model/native/native_heads.h"
#include "fsdp/model/unit/unit_context.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// q_norm and wq_b are undefined if queries have no latent.
struct LatentParams {
  at::Tensor q_norm;
  at::Tensor wq_b;
  at::Tensor kv_norm;
  at::Tensor wkv_b;
};

// The products of latents.
struct LatentHeads {
  at::Tensor q;       // [micro_batch x sequence x heads x head_size], rotated; undefined without a latent.
  at::Tensor kv;      // [micro_batch x sequence x heads x (plain + value)], of whole samples.
  at::Tensor q_rstd;  // [tokens x 1] fp32: 1 / rms of the latents.
  at::Tensor kv_rstd;
};

// Operands for the gradient of wq_b or wkv_b: the gradient of the product's output, and its input.
struct LatentProduct {
  at::Tensor grad_out;
  at::Tensor x;
};

// Rows of the first product for a micro-batch, [tokens x width], and the other inputs of its attention.
struct LatentRows {
  at::Tensor rows;
  at::IntArrayRef micro_batch;  // Samples, and tokens per sample.
  at::Tensor positions;         // From UnitInput.
  // With context parallelism, the inputs of keys and values for whole samples: the trailing columns of all
  // ranks' rows, in order, [micro_batch x sequence x (latent + rotated)].
  at::Tensor samples = {};
};

class LatentAttention {
 public:
  LatentAttention(const LlamaConfig& config, Rotary rotary);

  // Rotates the rotated part of the key, and of queries without a latent, in place. Call it once.
  void Rotate(const LatentRows& of) const;
  // Gathers LatentRows::samples from rotated rows; and its backward, which reduces gradients of samples to
  // rows.
  at::Tensor SamplesOf(const LatentRows& of, UnitContext* context) const;
  void SamplesBackward(const LatentRows& of, UnitContext* context) const;

  // Compute the key/value part and the query part of LatentHeads.
  void MakeKeys(const LatentRows& of, const LatentParams& params, LatentHeads* heads) const;
  void MakeQueries(const LatentRows& of, const LatentParams& params, LatentHeads* heads) const;

  // [micro_batch x sequence x heads x value]
  AttentionOutput Attend(const LatentRows& of, const LatentHeads& heads, const Documents& documents,
                         const UnitContext& context) const;
  // Gradients in the kernel's (padded) shapes.
  AttentionInput AttendBackward(at::Tensor grad, const LatentRows& of, const LatentHeads& heads,
                                const AttentionOutput& attended, const Documents& documents,
                                const UnitContext& context) const;

  // Backward from keys and values, or from queries, to the rows (or samples). Gradients replace the values
  // they belong to; heads.kv is overwritten too. Gradients of norms go to `norm_into` with the semantics of
  // GradInto (native_ops.h). QueriesBackward returns nothing if queries have no latent.
  LatentProduct KeysBackward(const at::Tensor& grad_k, const at::Tensor& grad_v, const LatentRows& of,
                             const LatentHeads& heads, const LatentParams& params, bool accumulate,
                             const at::Tensor& norm_into) const;
  LatentProduct QueriesBackward(const at::Tensor& grad_q, const LatentRows& of, const LatentHeads& heads,
                                const LatentParams& params, bool accumulate,
                                const at::Tensor& norm_into) const;

 private:
  bool HasQueryLatent() const { return latent_.query_rank > 0; }
  int64_t LatentBegin() const { return HasQueryLatent() ? latent_.query_rank : heads_ * head_size_; }
  at::Tensor Queries(const LatentRows& of) const;  // Only without a query latent: by head.
  // The inputs of keys and values: [tokens x latent], and [micro_batch x sequence x 1 x rotated].
  at::Tensor KeyLatents(const LatentRows& of) const;
  at::Tensor RotatedKey(const LatentRows& of) const;
  at::Tensor OwnSamples(const LatentRows& of) const;  // View of the rank's own samples in its rows.
  at::Tensor HeadsOf(const at::Tensor& latents, const at::Tensor& norm, const at::Tensor& matrix,
                     at::Tensor* rstd) const;  // [tokens x heads x width]
  at::Tensor RotatedPart(const at::Tensor& heads) const;
  AttentionInput Input(const LatentRows& of, const LatentHeads& heads) const;
  // Backward through a latent, columns [begin, begin + width) of the rows.
  LatentProduct LatentBackward(at::Tensor grad_out, const at::Tensor& matrix, const at::Tensor& latent,
                               const at::Tensor& rstd, const at::Tensor& norm, bool accumulate,
                               const at::Tensor& norm_into) const;

  const LatentConfig latent_;
  const Rotary rotary_;
  const int64_t heads_;
  const int64_t head_size_;  // Head size of queries and keys.
  const int64_t kernel_size_;
  const double scale_;  // Multiplies the scores.
};

}  // namespace fsdpd
