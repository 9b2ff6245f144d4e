// The output projection and its loss as one operation that never holds all logits: forward and backward go
// over the tokens in chunks, and backward computes a chunk's logits again from one number a token (the
// logarithm of its sum of exponentials). For Llama-3's vocabulary and 8192 tokens the logits in fp32 would
// be 4.2 GB, and their gradient as much again; a chunk is an eighth. The price is one more product with the
// output matrix.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

// SUM over the rows of `hidden` [tokens, hidden] whose target is not kIgnoredTarget of the cross-entropy of
// softmax(hidden weight^T), as a scalar fp32. Logits are computed in the tensors' type and reduced in fp32.
// Differentiable in hidden and weight [vocab, hidden]. `targets` [tokens] int64.
at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                              int64_t chunk_tokens = kLossChunkTokens);

}  // namespace fsdpd
