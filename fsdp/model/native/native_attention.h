// Attention with an explicit backward, by the fastest kernel that supports the tensors.
//
// On one H200 (bf16, head size 128, sequence 8192) cuDNN reaches 623 TFLOP/s forward and 496 backward, flash
// attention 318 and 277. LibTorch's order of preference puts cuDNN first there, from cuDNN 9.15 on
// (TORCH_CUDNN_SDPA_DEPRIORITIZED=1 in the environment disables that), and so does this. All kernels save one
// fp32 number per row and head instead of the [sequence x sequence] weights, and support grouped-query
// attention, except for:
//   kEfficient   CUDA's kernel for fp32: key and value heads are repeated, and their gradients summed.
//   kComposed    for shapes without a kernel (odd head sizes on CUDA): materializes the fp32 weights of one
//                whole micro-batch.
//
// Packed documents take one call each, except with flash attention's variable-length form, which processes
// all documents together: on CUDA in 16-bit types, if the document bounds are on the device.
//
// On CUDA, the order of sums in backward is unspecified, so two runs differ in their last bits unless
// LibTorch's deterministic algorithms are on (fsdp/torch/deterministic.h). These exclude cuDNN, and make
// flash attention's backward deterministic, but slower and with more memory. Forward is always deterministic.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "fsdp/model/unit/documents.h"

namespace fsdpd {

enum class AttentionKernel { kHost, kCudnn, kFlash, kFlashOfDocuments, kEfficient, kComposed };

// q: [batch, sequence, heads, head_size]; k, v: [batch, sequence, kv_heads, head_size]. Tokens may be
// strided, as in a packed QKV row. REQUIRES: kv_heads divides heads.
//
// Causal: a token attends to positions up to its own, and the numbers of queries and keys are equal.
// Otherwise every query attends to every key, and the numbers may differ.
//
// `scale`: multiplies the scores. Nullopt: 1 / sqrt(head_size).
struct AttentionInput {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  bool causal = true;
  std::optional<double> scale = std::nullopt;
};

// The result of forward, and what backward needs from it.
struct AttentionOutput {
  AttentionKernel kernel = AttentionKernel::kHost;
  at::Tensor out;          // [batch, sequence, heads, head_size]
  at::Tensor log_sum_exp;  // fp32, one per row and head, in the kernel's own shape.
  at::Tensor seed;         // Random state that CUDA's kernels pass to their backward; a few bytes.
  at::Tensor offset;
  // One part per document, or two per chunk of a context-parallel sample (context_attention.h: its own keys,
  // earlier keys). Parts replace all fields except `out`, and have no `out` themselves. Rows of documents are
  // in one tensor if possible.
  std::vector<AttentionOutput> parts;
};

AttentionKernel ChooseAttentionKernel(const AttentionInput& input);

AttentionOutput AttentionForward(const AttentionInput& input, AttentionKernel kernel);

// The same for packed documents: with one kernel call for all of them, or one call per document with the
// kernel that supports it.
AttentionOutput AttentionForward(const AttentionInput& input, const Documents& documents);

// Merges attention of the same queries over two sets of keys. `out` receives the output over both sets (its
// samples may be strided). The log-sum-exp of both inputs becomes that over all keys, which is what the
// backward of each needs together with the merged output.
void JoinAttention(AttentionOutput* first, AttentionOutput* second, const at::Tensor& out);

// Returns the gradients of q, k and v, contiguous and in their shapes. `documents`: those of forward.
AttentionInput AttentionBackward(const at::Tensor& grad_out, const AttentionInput& input,
                                 const AttentionOutput& output, const Documents& documents = {});

}  // namespace fsdpd
