// The parameters of a Llama block, and how ranks that share matrices cut them. model_facts.h has their order.
#pragma once

#include <string>
#include <vector>

#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/model/model_shape.h"

namespace fsdpd {

using Params = std::vector<ParamFacts>;

// Matrices decay, norms and biases do not.
void Add(Params* params, std::string name, std::vector<int64_t> shape, TensorPartition cut = {});

// Of heads or words that are cut, a rank's.
int64_t SliceOf(int64_t whole, int64_t ranks);

// Where there are fewer key heads than ranks each has one, which it may share with its neighbours: they have
// the matrices of all.
bool CutsKeys(const LlamaConfig& model, int64_t tensor);
int64_t KeyHeads(const LlamaConfig& model, int64_t tensor);

Params LlamaBlockParams(const LlamaConfig& model, const Shape& s);

}  // namespace fsdpd
