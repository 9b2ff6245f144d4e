// Llama-family decoder (Llama, Mistral, Qwen2, Qwen3) as a chain of native units: the same model as llama.h,
// with a hand-written backward. The autograd units of llama.h are its reference implementation. One code path
// for CPU and CUDA.
//
// native_block.h and native_head.h state the saved activations of each unit as formulas; the memory plan uses
// the same ones. The embedding saves its tokens.
#pragma once

#include <memory>
#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

// Makes the units of `facts` (from DescribeModel(config, ...) or DescribeSpec), in order. `device` is where
// their parameters will be, `compute` the parameters' type.
std::vector<std::unique_ptr<Unit>> MakeNativeLlama(const LlamaConfig& config, const ModelFacts& facts,
                                                   int64_t sequence_length, at::Device device, DType compute);

}  // namespace fsdpd
