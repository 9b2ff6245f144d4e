// A decoder of the Llama family (Llama, Mistral, Qwen2, Qwen3) as a chain of native units: the same model as
// llama.h, whose autograd units are this one's oracle, with a backward written by hand. One code path for CPU
// and CUDA.
//
// What a unit keeps between forward and backward stands, as formulas, at the top of native_block.h,
// native_head.h and native_embedding.h; the memory plan counts with the same numbers.
#pragma once

#include <memory>
#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

// The units of `facts`, made by DescribeModel(config, ...) or DescribeSpec, in order. `device` is where the
// parameters that they are bound to will be, `compute` their type.
std::vector<std::unique_ptr<Unit>> MakeNativeLlama(const LlamaConfig& config, const ModelFacts& facts,
                                                   int64_t sequence_length, at::Device device, DType compute);

}  // namespace fsdpd
