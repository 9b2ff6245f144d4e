// Decomposition of a range of a flattened parameter into axis-aligned rectangles. A shard may start or end
// inside a row, but a checkpoint describes chunks by offsets and sizes per dimension. A matrix needs up to
// three rectangles (end of a row, whole rows, start of a row); n dimensions need up to 2n - 1.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdpd {

// One entry per dimension; empty for a scalar, which has one element.
struct Rectangle {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;

  int64_t elements() const;
};

// In row-major order, and contiguous: concatenating the rectangles' elements gives the range, so memory from
// `begin` on can be used without a copy. Empty for an empty range. REQUIRES: 0 <= begin, 0 <= elements, and
// begin + elements is at most the elements of `shape`.
std::vector<Rectangle> RectanglesOf(const std::vector<int64_t>& shape, int64_t begin, int64_t elements);

}  // namespace fsdpd
