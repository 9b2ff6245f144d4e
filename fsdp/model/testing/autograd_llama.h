// Llama-family decoder (Llama, Mistral, Qwen2, Qwen3) as a chain of autograd units: embedding, blocks
// (RMSNorm, rotary embedding, grouped-query attention, SwiGLU), head (final norm, output projection, summed
// cross-entropy). It is the reference implementation that tests compare the native units (native_llama.h)
// with.
//
// Parameters have the names, shapes and order of DescribeModel. Numerics follow PyTorch: nn.RMSNorm
// (normalized in fp32), Hugging Face's half rotation with positions in fp32, scaled_dot_product_attention,
// and cross-entropy in fp32. With equal weights, losses equal those of a plain PyTorch Llama up to the order
// of sums.
#pragma once

#include <memory>
#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

// Makes the units of `facts` (from DescribeModel(config, ...)), in order. `device` is where their parameters
// will be.
std::vector<std::unique_ptr<Unit>> MakeLlama(const LlamaConfig& config, const ModelFacts& facts,
                                             int64_t sequence_length, at::Device device);

}  // namespace fsdpd
