// Attention with an explicit backward, by the fastest kernel that takes the tensors.
//
// On one H200 (bf16, head size 128, sequence 8192) cuDNN runs at 623 TFLOP/s forward and 496 backward, flash
// attention at 318 and 277; LibTorch's own order puts cuDNN first there, from cuDNN 9.15 on (the
// environment's TORCH_CUDNN_SDPA_DEPRIORITIZED=1 turns that off), and so does this. All of them keep one fp32
// number per row and head instead of the [sequence x sequence] weights, and take fewer key and value heads
// than query heads, apart from:
//   kEfficient   CUDA's kernel for fp32: key and value heads are repeated for it and their gradients summed.
//   kComposed    for what no kernel takes (odd head sizes on CUDA): holds the weights of one whole
//                micro-batch in fp32.
//
// Documents are one call each, but where flash attention takes them all at once, by its form for sequences of
// several lengths: on CUDA in 16-bit types, where their bounds are on the device.
//
// On CUDA, backward's sums run in any order and two runs differ in their last bits, unless LibTorch's
// deterministic algorithms are on (fsdp/torch/deterministic.h): these rule cuDNN out, and flash attention's
// backward keeps an order, slower and in more memory. Forward is the same bits each time.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "fsdp/model/unit/documents.h"

namespace fsdpd {

enum class AttentionKernel { kHost, kCudnn, kFlash, kFlashOfDocuments, kEfficient, kComposed };

// q: [batch, sequence, heads, head_size]; k, v: [batch, sequence, kv_heads, head_size]. Tokens may lie
// further apart than their heads take, as where q, k and v stand side by side in a row. REQUIRES: kv_heads
// divides heads.
//
// Causal: a token sees those up to its own number, and there are as many queries as keys. Otherwise every
// query sees every key, of which there may be more or fewer.
//
// `scale`: of scores. None: 1 / sqrt(head_size).
struct AttentionInput {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  bool causal = true;
  std::optional<double> scale = std::nullopt;
};

// The forward's result, and what backward needs of it.
struct AttentionOutput {
  AttentionKernel kernel = AttentionKernel::kHost;
  at::Tensor out;          // [batch, sequence, heads, head_size]
  at::Tensor log_sum_exp;  // fp32, one a row and head, in the kernel's own shape.
  at::Tensor seed;         // Random state that CUDA's kernels hand to their backward; some bytes.
  at::Tensor offset;
  // Of documents, or of a cut sample's chunks (cut_attention.h: for each its own keys and those before):
  // without `out`, in place of all but `out` here. Rows of documents lie in one tensor where that can be.
  std::vector<AttentionOutput> parts;
};

AttentionKernel ChooseAttentionKernel(const AttentionInput& input);

AttentionOutput AttentionForward(const AttentionInput& input, AttentionKernel kernel);

// The same for tokens of several documents, all by the kernel that takes them at once or one after the other,
// each by the kernel that takes it.
AttentionOutput AttentionForward(const AttentionInput& input, const Documents& documents);

// `out`: what the queries of both, which are the same, give attending to the keys of both; samples of it may
// lie apart. The log-sum-exp of each becomes that over all keys, as the backwards of both want it, beside the
// joint result.
void JoinAttention(AttentionOutput* first, AttentionOutput* second, const at::Tensor& out);

// The gradients of q, k and v, contiguous and in their shapes. `documents`: the forward's.
AttentionInput AttentionBackward(const at::Tensor& grad_out, const AttentionInput& input,
                                 const AttentionOutput& output, const Documents& documents = {});

}  // namespace fsdpd
