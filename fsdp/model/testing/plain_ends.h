// Embedding and loss for the models of tests: a token embedding, and a cross-entropy summed over the targets
// that count, with a tiny vocabulary. The test supplies the units between.
#pragma once

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>

#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

constexpr int64_t kPlainVocab = 11;
constexpr int64_t kPlainWidth = 6;

// `params`: the table, [kPlainVocab, kPlainWidth].
inline UnitOutput PlainEmbedding(const UnitInput& input, const std::vector<at::Tensor>& params) {
  return {at::embedding(params[0], input.tokens), {}};
}

// `logits`: kPlainVocab per token.
inline UnitOutput PlainLoss(const UnitInput& input, const at::Tensor& logits) {
  return {{},
          at::cross_entropy_loss(logits.view({-1, kPlainVocab}), input.targets.view({-1}), {},
                                 at::Reduction::Sum, kIgnoredTarget)};
}

}  // namespace fsdpd
