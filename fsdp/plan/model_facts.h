// What the plan must know of a model without building it: units, their parameters' shapes, what a forward
// keeps for backward, and what it costs. fsdp/model builds modules whose parameters have exactly these names,
// shapes and order (its test holds the two together), so the coordinator can plan a job that it cannot run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/plan/spec.h"

namespace fsdpd {

enum class UnitKind { kEmbedding, kBlock, kHead };

struct ParamFacts {
  std::string name;  // Within the unit: "attention.wq".
  std::vector<int64_t> shape;
  bool decay = true;  // Weight decay applies (matrices yes, norms no).

  int64_t elements() const;
};

struct UnitFacts {
  std::string name;  // "embedding", "layer.3", "head"
  UnitKind kind = UnitKind::kBlock;
  std::vector<ParamFacts> params;
  // For one micro-batch on one rank:
  int64_t input_bytes = 0;       // The unit's input, kept when it is recomputed.
  int64_t activation_bytes = 0;  // Kept from forward to backward without recompute, input included. Estimate.
  int64_t workspace_bytes = 0;   // Extra bytes at the unit's own peak, in forward or backward. Estimate.
  double forward_flops = 0;      // Causal attention counted half.

  int64_t elements() const;
};

struct ModelFacts {
  std::vector<UnitFacts> units;  // In forward order. The last one computes the loss.

  int64_t elements() const;
};

// Units: "embedding", "layer.0" .. "layer.N-1", "head" (final norm, output projection and loss).
// Parameters in order:
//   embedding: weight [vocab, hidden]
//   layer:     attention_norm [hidden], attention.wq [heads*head, hidden], attention.wk [kv*head, hidden],
//              attention.wv [kv*head, hidden], attention.wo [hidden, heads*head], ffn_norm [hidden],
//              ffn.w1 [intermediate, hidden] (gate), ffn.w3 [intermediate, hidden] (up), ffn.w2 [hidden,
//              intermediate]
//   head:      norm [hidden], output [vocab, hidden]
ModelFacts DescribeLlama(const LlamaConfig& model, int64_t micro_batch, int64_t sequence_length,
                         DType compute);

}  // namespace fsdpd
