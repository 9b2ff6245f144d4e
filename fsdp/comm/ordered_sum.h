// Sums of fp32 in rank order: part 0 + part 1 + ... The local and the Gloo communicator both reduce by it, so
// a sum has the same bits whichever of them made it, on every rank, and as reduce-scatter or as all-reduce.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdpd {

// `out` may be one of the parts; otherwise none overlaps another.
// REQUIRES: at least one part; each, and `out`, of `count` elements.
void SumInOrder(const std::vector<const float*>& parts, int64_t count, float* out);

// The piece of `count` elements that `rank` of `size` sums in an all-reduce: all of equal size but the last
// ones.
struct Piece {
  int64_t begin = 0;
  int64_t count = 0;
};
Piece PieceOf(int rank, int size, int64_t count);

}  // namespace fsdpd
