// Parameters of a Llama layer, and their tensor-parallel partition. Order: see model_facts.h.
#pragma once

#include <string>
#include <vector>

#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/model/model_shape.h"

namespace fsdpd {

using Params = std::vector<ParamFacts>;

// Appends a parameter. Weight decay applies to matrices, not to norms and biases.
void Add(Params* params, std::string name, std::vector<int64_t> shape, TensorPartition partition = {});

// One rank's part of a partitioned dimension (heads or vocabulary).
int64_t SliceOf(int64_t whole, int64_t ranks);

// Whether key/value projections are partitioned. With fewer key heads than tensor-parallel ranks, each rank
// uses one key head, possibly the same as its neighbor, and holds the whole matrices.
bool ShardsKeys(const LlamaConfig& model, int64_t tensor);
int64_t KeyHeads(const LlamaConfig& model, int64_t tensor);

Params LlamaBlockParams(const LlamaConfig& model, const Shape& s);

}  // namespace fsdpd
