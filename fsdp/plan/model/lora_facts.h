// LoRA facts: which matrices get low-rank adapters, the adapters' parameters, and their cost.
//
// A matrix W [outputs x inputs] with an adapter computes y = x W^T + scale (x A^T) B^T, with A [rank x
// inputs] and B [outputs x rank]. Names: "attention.wq" has "attention.wq.lora_A" and "attention.wq.lora_B".
// All A follow the parameters of the unit, and all B follow those: the A of matrices that read the same input
// are adjacent, and are read as one matrix.
//
// Tensor parallelism. With rows of W sharded, B is sharded in the same way, and every rank has A: the
// gradient contributions of A are summed like those of norms. With columns of W sharded, A is sharded in the
// same way and every rank has B; each rank adds its part of (x A^T) B^T to its part of x W^T before those are
// summed.
#pragma once

#include <string>

#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

// Whether a matrix can have an adapter: the projections of attention (with latent attention only those that
// read the layer's input, and the output projection), dense feed-forward layers and shared experts.
bool TakesAdapter(const UnitFacts& unit, const ParamFacts& param);

std::string LoraAName(const std::string& matrix);  // "attention.wq.lora_A"
std::string LoraBName(const std::string& matrix);

// Adds adapters to the matrices that match the configured targets, and freezes all other parameters.
// REQUIRES: the model is of the Llama family, and `lora` is enabled.
void DescribeLora(const LoraConfig& lora, int64_t tokens, DType compute, ModelFacts* facts);

}  // namespace fsdpd
