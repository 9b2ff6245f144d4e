// Communication inside units of the Llama family, for UnitFacts::exchanges: context-parallel, expert-parallel
// and tensor-parallel collectives.
#pragma once

#include <vector>

#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/model/model_shape.h"

namespace fsdpd {

// Context parallel: each rank projects the keys and values of its tokens; forward all-gathers them, backward
// gathers them again and reduce-scatters their gradients. Expert parallel: token counts per expert are summed
// over the sample, and tokens are dispatched to the ranks of their experts.
std::vector<UnitExchange> LlamaBlockExchanges(const Shape& s, DType compute);

// Tensor-parallel embedding: a rank looks up the tokens in its shard of the vocabulary; backward gathers the
// gradients of all tokens.
std::vector<UnitExchange> LlamaEmbeddingExchanges(const Shape& s, DType compute);

// Tensor-parallel head: gathers the normed input of all tokens and each rank's log-sum-exp over its
// vocabulary shard; backward sums the input's gradient.
std::vector<UnitExchange> LlamaHeadExchanges(const Shape& s, DType compute);

}  // namespace fsdpd
