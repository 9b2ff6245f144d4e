// Expert-parallel token dispatch: the choice between all-gather and all-to-all, and the buffer capacity in
// rows (shared by the planner and fsdp/model).
#pragma once

#include <algorithm>
#include <cstdint>

namespace fsdpd {

// Whether dispatch all-gathers tokens (each token once to every rank, one partial output back from each),
// instead of sending one row per chosen expert all-to-all. With as many ranks as experts per token, both send
// the same volume. Row buffers, however, are about twice as large as their content, because every pair of
// ranks reserves the maximum that any pair needs. Hence the factor 2.
constexpr bool GathersTokens(int64_t ranks, int64_t per_token) { return ranks > 1 && ranks <= 2 * per_token; }

// Initial expert capacity, relative to a perfectly balanced routing. Applies per rank for all-gathered
// tokens, and per pair of ranks for rows sent all-to-all.
constexpr double kExpertCapacity = 1.25;
// Growth factor after an overflow; applied repeatedly.
constexpr double kExpertCapacityGrowth = 1.5;

// Buffer rows for a rank's `choices` (tokens x experts per token), at the given capacity factor, limited to
// the most that can occur. RowsOfCapacity: all-gathered tokens. RowsOfPart: rows from one rank to another.
inline int64_t RowsOfCapacity(double capacity, int64_t choices, int64_t per_token, int64_t ranks,
                              int64_t experts) {
  const int64_t most = ranks * (choices / per_token) * std::min(per_token, experts);
  return std::min(most, static_cast<int64_t>(capacity * static_cast<double>(choices)) + 1);
}
inline int64_t RowsOfPart(double capacity, int64_t choices, int64_t per_token, int64_t ranks,
                          int64_t experts) {
  const int64_t most = choices / per_token * std::min(per_token, experts);
  const double even = static_cast<double>(choices) / static_cast<double>(ranks);
  return std::min(most, static_cast<int64_t>(capacity * even) + 1);
}

}  // namespace fsdpd
