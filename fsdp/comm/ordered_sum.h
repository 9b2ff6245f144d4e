// Sums in rank order, in fp32: part 0 + part 1 + ... The local and the TCP communicator both reduce by it,
// so a sum has the same bits whichever of them made it, on every rank, and as reduce-scatter or as
// all-reduce.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// Parts are of `type`. Of fp32 parts, `out` may be one; otherwise nothing overlaps.
// REQUIRES: at least one part; each, and `out`, of `count` elements.
void SumInOrder(const std::vector<const void*>& parts, DType type, int64_t count, float* out);

// Adds `sums` to `to`, elements of `type`, each rounded once. LibTorch makes fp32 copies for that.
void AddSums(const float* sums, int64_t count, DType type, void* to);

// The piece of `count` elements that `rank` of `size` sums in an all-reduce: all of equal size but the last
// ones.
struct Piece {
  int64_t begin = 0;
  int64_t count = 0;
};
Piece PieceOf(int rank, int size, int64_t count);

}  // namespace fsdpd
