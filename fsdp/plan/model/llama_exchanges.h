// What units of the llama family exchange with other ranks, for their facts (UnitFacts::exchanges).
#pragma once

#include <vector>

#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/model/model_shape.h"

namespace fsdpd {

// Of each sample's keys and values the rank makes a part; backward gathers all again, and sums gradients.
// How often a sample's tokens go to each expert is summed over its parts, and rows go to who has their
// expert.
std::vector<UnitExchange> LlamaBlockExchanges(const Shape& s, DType compute);

// A rank finds the tokens whose words it has; backward gathers all tokens' gradients.
std::vector<UnitExchange> LlamaEmbeddingExchanges(const Shape& s, DType compute);

// The normed input of all tokens, and each rank's log-sum-exp of its words; backward sums the input's
// gradient.
std::vector<UnitExchange> LlamaHeadExchanges(const Shape& s, DType compute);

}  // namespace fsdpd
