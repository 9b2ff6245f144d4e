// Memory of attention's backward beside what forward kept, where it may be more than the feed-forward's: for
// LlamaBlock's and GPT-2's facts (UnitFacts::workspace_bytes).
#pragma once

#include "fsdp/plan/model/model_shape.h"

namespace fsdpd {

// What flash attention's backward adds up in fp32, of so many rows of so many sequences: gradients of
// queries, and a number a row and head. Where it keeps an order, gradients have a sum for each of the
// multiprocessors that share a head.
int64_t QuerySumBytes(const Shape& s, int64_t sequences, int64_t rows);

// CUDA's backward of attention to a sample's documents (native_attention.h): the sums, keys' and values'
// gradients once for each query head, and the gradients of some documents beside those of all.
int64_t DocumentsAttentionBytes(const Shape& s);

// The same of whole samples, where it keeps an order.
int64_t OrderedAttentionBytes(const Shape& s);

}  // namespace fsdpd
