// Fused output projection and cross-entropy, which never materializes all logits: forward and backward
// process the tokens in chunks, and backward recomputes each chunk's logits, given one saved number per token
// (the log-sum-exp). For Llama 3's vocabulary and 8192 tokens the fp32 logits would take 4.2 GB, and their
// gradient as much again; a chunk takes an eighth. The cost is one more product with the output matrix.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

// Sum over rows of `hidden` [tokens, hidden] of cross_entropy(hidden weight^T, targets), as an fp32 scalar.
// Rows with target kIgnoredTarget do not count. Logits are computed in the tensors' type and reduced in fp32.
// Differentiable in hidden and weight [vocab, hidden]. `targets`: [tokens] int64.
at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                              int64_t chunk_tokens = kLossChunkTokens);

}  // namespace fsdpd
