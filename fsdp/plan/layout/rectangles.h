// A range of a flattened parameter as axis-aligned rectangles of the parameter itself. Layouts cut at
// elements, so a shard may start or end inside of a row; a checkpoint describes chunks by offsets and sizes
// per dimension. Between the two: for a matrix up to three rectangles (the end of a row, whole rows, the
// start of a row), for n dimensions up to 2n - 1.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdpd {

// One entry per dimension; none for a scalar, which is one element.
struct Rectangle {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;

  int64_t elements() const;
};

// In row-major order, and so that one after the other their elements are the range's: what lies in memory
// from `begin` on can be handed out as the rectangles' contents without being moved. None for an empty range.
// REQUIRES: 0 <= begin, 0 <= elements, and begin + elements is at most the elements of `shape`.
std::vector<Rectangle> RectanglesOf(const std::vector<int64_t>& shape, int64_t begin, int64_t elements);

}  // namespace fsdpd
