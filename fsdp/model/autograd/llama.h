// A decoder of the Llama family (Llama, Mistral, Qwen2, Qwen3) as a chain of autograd units: embedding,
// blocks (RMSNorm, rotary positions, grouped-query attention, SwiGLU), head (final norm, output projection,
// summed cross-entropy). The oracle for the native units of native_llama.h, and their stand-in.
//
// Parameters have DescribeModel's names, shapes and order. Numerics follow PyTorch: nn.RMSNorm (normalised in
// fp32), Hugging Face's half-rotation of positions computed in fp32, scaled_dot_product_attention,
// cross-entropy in fp32. So with equal weights the losses equal a plain PyTorch Llama's up to the order of
// sums.
#pragma once

#include <memory>
#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

// The units of `facts`, made by DescribeModel(config, ...), in order. `device` is where the parameters that
// they are bound to will be.
std::vector<std::unique_ptr<Unit>> MakeLlama(const LlamaConfig& config, const ModelFacts& facts,
                                             int64_t sequence_length, at::Device device);

}  // namespace fsdpd
