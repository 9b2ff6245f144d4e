// The sizes of a model's units that their facts are estimated from.
#pragma once

#include <cstdint>

#include "fsdp/plan/model/expert_capacity.h"
#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/model/tensor_partition.h"

namespace fsdpd {

struct Shape {
  int64_t tokens;    // Of one micro-batch, that matrices work on.
  int64_t sequence;  // Of a sample, over all ranks that share it.
  int64_t vocab;     // This, and what follows but `hidden`, of the rank's slice.
  int64_t hidden;
  int64_t query;  // Width of all query heads, as attention's kernels have them.
  int64_t key;    // Width of all key heads, and of all value heads, likewise.
  int64_t intermediate;
  int64_t heads;
  int64_t compute_bytes;  // Of one element in compute precision.
  bool host;  // On the CPU 16-bit operations go by way of fp32 copies, which CUDA's kernels do not need.
  int64_t context;     // Ranks with parts of each sample.
  int64_t tensor = 1;  // Ranks with slices of each matrix; between matrices they part the tokens.
  // Of a layer with experts, `intermediate` is one's.
  int64_t experts = 0;  // 0: the layer has none.
  int64_t per_token = 1;
  int64_t expert = 1;  // Ranks that have them among them.
  int64_t shared = 0;  // Of the rank's slice: width of the layer beside them.
  bool selection_bias = false;
  LatentConfig latent = {};
  bool documents = false;          // Samples may be made of several.
  bool computed_grads = false;     // Gradients' buffers have the compute type.
  bool ordered_attention = false;  // Flash attention, whose backward adds up in an order.

  // Of the feed-forward's products: each token as often as it goes to an expert.
  int64_t rows() const { return tokens * per_token; }
  // Of the rank's own. On CUDA there is room for so many rows of no choice, too.
  int64_t own_experts() const { return experts / expert; }
  int64_t filling_rows() const { return host ? 0 : own_experts() * kExpertRowStep; }
  bool tokens_travel() const { return TokensTravel(expert, per_token); }
  // Where rows travel, in parts for all ranks.
  int64_t travelling_rows() const {
    if (expert == 1 || tokens_travel()) return 0;
    return expert * RowsOfPart(kExpertCapacity, rows(), per_token, expert, own_experts());
  }
  // That memory has room for. On the CPU there are as many as there are.
  int64_t room_rows() const {
    if (host || expert == 1) return rows() + filling_rows();
    const int64_t room = tokens_travel()
                             ? RowsOfRoom(kExpertCapacity, rows(), per_token, expert, own_experts())
                             : travelling_rows();
    return room + filling_rows();
  }
  int64_t RowBytes(int64_t width) const { return room_rows() * width * compute_bytes; }
  // Of those that there are where experts get equally many: room beyond them nobody touches.
  int64_t MovedRowBytes(int64_t width) const { return (rows() + filling_rows()) * width * compute_bytes; }
  // Of all ranks' tokens, where they travel to experts.
  int64_t TravellingBytes() const { return tokens_travel() ? expert * Bytes(hidden) : 0; }
  // Width of what attention gives, and of a query with a value: what a pair of tokens costs.
  int64_t attended() const { return latent ? heads * latent.value_head_size : query; }
  int64_t pair_width() const {
    if (!latent) return 2 * query;
    return heads * (latent.plain_head_size + latent.rotary_head_size + latent.value_head_size);
  }
  bool HostCasts() const { return host && compute_bytes < 4; }
  int64_t Bytes(int64_t width) const { return tokens * width * compute_bytes; }
  int64_t own_tokens() const { return tokens / tensor; }  // Between matrices.
  int64_t OwnBytes(int64_t width) const { return own_tokens() * width * compute_bytes; }
  int64_t HiddenBytes() const { return OwnBytes(hidden); }
  // How a matrix is cut that makes what units have inside of them, and one that reads it.
  TensorPartition Rows() const { return {0, tensor}; }
  TensorPartition Columns() const { return {1, tensor}; }
  // Of all tokens, where ranks part them; else there is nothing beside the rank's own.
  int64_t AllHiddenBytes() const { return tensor > 1 ? Bytes(hidden) : 0; }
  int64_t AllKeys() const { return tokens * context * 2 * key; }  // And values, of whole samples.
};

}  // namespace fsdpd
