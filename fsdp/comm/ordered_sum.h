// Sums in rank order, in fp32: part 0 + part 1 + ... Used by the local and the TCP communicator, so a sum has
// the same bits for both, on every rank, and in reduce-scatter and all-reduce.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// Parts are of `type`. If it is fp32, `out` may be one of them; otherwise nothing overlaps. REQUIRES: at
// least one part; each part and `out` have `count` elements.
void SumInOrder(const std::vector<const void*>& parts, DType type, int64_t count, float* out);

// Adds `sums` to `to`, elements of `type`, rounding each once. LibTorch would allocate fp32 copies.
void AddSums(const float* sums, int64_t count, DType type, void* to);

// The piece of `count` elements that `rank` of `size` sums in an all-reduce. All pieces have equal size
// except the last ones.
struct Piece {
  int64_t begin = 0;
  int64_t count = 0;
};
Piece PieceOf(int rank, int size, int64_t count);

}  // namespace fsdpd
