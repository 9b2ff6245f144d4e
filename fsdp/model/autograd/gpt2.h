// A decoder of the GPT-2 family as a chain of autograd units: embedding (tokens and learned positions),
// blocks (LayerNorm, fused query-key-value projection, full causal attention, GELU, biases throughout), head
// (final norm, output projection, summed cross-entropy).
//
// Parameters have DescribeModel's names, shapes and order; matrices are [out, in], the transpose of the
// Conv1D weights of OpenAI's and Hugging Face's files. Numerics follow Hugging Face's GPT2LMHeadModel without
// dropout: gelu_new (the tanh form), scores scaled by 1/sqrt(head size).
#pragma once

#include <memory>
#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

// The units of `facts`, made by DescribeModel(config, ...), in order.
// REQUIRES: sequences are at most config.positions long.
std::vector<std::unique_ptr<Unit>> MakeGpt2(const Gpt2Config& config, const ModelFacts& facts);

}  // namespace fsdpd
