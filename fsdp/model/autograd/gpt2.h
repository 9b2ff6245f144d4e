// GPT-2 decoder as a chain of autograd units: embedding (tokens and learned positions), blocks (LayerNorm,
// fused QKV projection, full causal attention, GELU, biases throughout), head (final norm, output projection,
// summed cross-entropy).
//
// Parameters have the names, shapes and order of DescribeModel; matrices are [out, in], the transpose of the
// Conv1D weights in OpenAI's and Hugging Face's files. Numerics follow Hugging Face's GPT2LMHeadModel without
// dropout: gelu_new (the tanh approximation), scores scaled by 1/sqrt(head size).
#pragma once

#include <memory>
#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

// Makes the units of `facts` (from DescribeModel(config, ...)), in order. REQUIRES: sequences are at most
// config.positions long.
std::vector<std::unique_ptr<Unit>> MakeGpt2(const Gpt2Config& config, const ModelFacts& facts);

}  // namespace fsdpd
