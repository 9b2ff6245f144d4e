// The ends that tests' own models share: an embedding before, and behind a loss that is summed over the
// tokens that count, of a small vocabulary. What lies between is the test's.
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

// `logits`: kPlainVocab of each token.
inline UnitOutput PlainLoss(const UnitInput& input, const at::Tensor& logits) {
  return {{},
          at::cross_entropy_loss(logits.view({-1, kPlainVocab}), input.targets.view({-1}), {},
                                 at::Reduction::Sum, kIgnoredTarget)};
}

}  // namespace fsdpd
