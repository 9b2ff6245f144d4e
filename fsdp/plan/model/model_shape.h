// Per-rank sizes of a model's units, from which their facts are computed.
#pragma once

#include <cstdint>

#include "fsdp/plan/model/expert_capacity.h"
#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/model/tensor_partition.h"

namespace fsdpd {

struct Shape {
  int64_t tokens;    // Tokens of a micro-batch that matrix products process.
  int64_t sequence;  // Sequence length of a sample, over all context-parallel ranks.
  // This and the following sizes except `hidden` are those of the rank's tensor-parallel shard.
  int64_t vocab;
  int64_t hidden;
  int64_t query;  // Total width of query heads in the attention kernel.
  int64_t key;    // Total width of key heads, and of value heads, in the attention kernel.
  int64_t intermediate;
  int64_t heads;
  int64_t compute_bytes;  // Bytes per element in compute precision.
  bool host;              // CPU: 16-bit operations make fp32 copies, which CUDA kernels do not need.
  int64_t context;        // Context-parallel degree.
  int64_t tensor = 1;  // Tensor-parallel degree; between matrices the tokens are sharded (sequence parallel).
  // In a layer with experts, `intermediate` is the size of one expert.
  int64_t experts = 0;  // 0: dense layer.
  int64_t per_token = 1;
  int64_t expert = 1;  // Expert-parallel degree.
  int64_t shared = 0;  // Width of the shared expert, in the rank's shard.
  bool selection_bias = false;
  LatentConfig latent = {};
  bool documents = false;          // Samples may contain several documents.
  bool computed_grads = false;     // Gradient buffers use the compute type.
  bool ordered_attention = false;  // Deterministic flash attention.

  // Rows of the feed-forward products: one per token and chosen expert.
  int64_t rows() const { return tokens * per_token; }
  // Experts on this rank. On CUDA, each may add padding rows.
  int64_t own_experts() const { return experts / expert; }
  int64_t filling_rows() const { return host ? 0 : own_experts() * kExpertRowStep; }
  bool gathers_tokens() const { return GathersTokens(expert, per_token); }
  // Rows in the all-to-all buffers, over all ranks; 0 if dispatch all-gathers tokens.
  int64_t dispatched_rows() const {
    if (expert == 1 || gathers_tokens()) return 0;
    return expert * RowsOfPart(kExpertCapacity, rows(), per_token, expert, own_experts());
  }
  // Allocated rows. On CPU exactly the rows that occur.
  int64_t capacity_rows() const {
    if (host || expert == 1) return rows() + filling_rows();
    const int64_t capacity = gathers_tokens()
                                 ? RowsOfCapacity(kExpertCapacity, rows(), per_token, expert, own_experts())
                                 : dispatched_rows();
    return capacity + filling_rows();
  }
  int64_t RowBytes(int64_t width) const { return capacity_rows() * width * compute_bytes; }
  // Memory traffic with perfectly balanced experts: unused capacity is not touched.
  int64_t MovedRowBytes(int64_t width) const { return (rows() + filling_rows()) * width * compute_bytes; }
  // Bytes of all ranks' tokens, if dispatch all-gathers them.
  int64_t GatheredTokenBytes() const { return gathers_tokens() ? expert * Bytes(hidden) : 0; }
  // Width of attention's output, and of one query plus one value: the cost of a query/key pair.
  int64_t attended() const { return latent ? heads * latent.value_head_size : query; }
  int64_t pair_width() const {
    if (!latent) return 2 * query;
    return heads * (latent.plain_head_size + latent.rotary_head_size + latent.value_head_size);
  }
  bool HostCasts() const { return host && compute_bytes < 4; }
  int64_t Bytes(int64_t width) const { return tokens * width * compute_bytes; }
  int64_t own_tokens() const { return tokens / tensor; }  // Sharded between matrices (sequence parallel).
  int64_t OwnBytes(int64_t width) const { return own_tokens() * width * compute_bytes; }
  int64_t HiddenBytes() const { return OwnBytes(hidden); }
  // Tensor-parallel partition: column-parallel matrices (Rows: output features are split) produce a unit's
  // inner width; row-parallel ones (Columns: input features are split) read it.
  TensorPartition Rows() const { return {0, tensor}; }
  TensorPartition Columns() const { return {1, tensor}; }
  // Hidden states of all tokens under sequence parallelism; else 0, because the rank's own copy is the only
  // one.
  int64_t AllHiddenBytes() const { return tensor > 1 ? Bytes(hidden) : 0; }
  int64_t AllKeys() const { return tokens * context * 2 * key; }  // Keys and values of whole samples.
};

}  // namespace fsdpd
