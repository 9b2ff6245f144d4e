// Workspace of attention's backward, for UnitFacts::workspace_bytes of Llama and GPT-2 layers. Matters if it
// exceeds the workspace of the feed-forward layer.
#pragma once

#include "fsdp/plan/model/model_shape.h"

namespace fsdpd {

// Flash attention's fp32 accumulators in backward, for `rows` rows of `sequences` sequences: query gradients,
// and one number per row and head. The deterministic kernel has one accumulator per multiprocessor that works
// on the same head.
int64_t QuerySumBytes(const Shape& s, int64_t sequences, int64_t rows);

// Workspace of document-masked attention on CUDA (native_attention.h): the accumulators, key and value
// gradients expanded to one per query head, and the gradients of one group of documents in addition to those
// of all.
int64_t DocumentsAttentionBytes(const Shape& s);

// Workspace of deterministic attention to whole samples.
int64_t OrderedAttentionBytes(const Shape& s);

}  // namespace fsdpd
