// How the ranks of a group share a parameter: each has an equal slice of one dimension, or all of them have
// all of it. Of those that share matrices (Group::kTensor) the slices are rows or columns; of those that
// share experts (Group::kExpert), of the tensors of all experts, each has some experts'. Everything that
// tells slices from whole parameters asks here: layout and norm (who holds copies of what), initial values,
// and what checkpoints call the numbers of a slice, which know nothing of slices.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/mesh/mesh.h"

namespace fsdpd {

struct TensorPartition {
  int dim = 0;        // Of the parameter's shape.
  int64_t parts = 1;  // Ranks with a slice of their own. 1: none is cut, and all ranks have the same.
  Group group = Group::kTensor;  // Whose ranks they are.

  bool cuts() const { return parts > 1; }
  // kSelf: it is not cut.
  Group over() const { return cuts() ? group : Group::kSelf; }
};

// Neighbours in the flattened parameter: elements [begin, begin + elements) of it.
struct ElementRun {
  int64_t begin = 0;
  int64_t elements = 0;
};

// Below, `shape` is a slice's, and `part` its number among them. REQUIRES: 0 <= part < cut.parts.

std::vector<int64_t> WholeShape(std::vector<int64_t> shape, const TensorPartition& cut);

// Where a slice's elements [begin, begin + elements) are in the whole parameter, in their order.
std::vector<ElementRun> WholeRuns(const std::vector<int64_t>& shape, const TensorPartition& cut, int64_t part,
                                  int64_t begin, int64_t elements);

// The offsets, in the whole parameter, of what is at `offsets` in the slice.
std::vector<int64_t> WholeOffsets(std::vector<int64_t> offsets, const std::vector<int64_t>& shape,
                                  const TensorPartition& cut, int64_t part);

}  // namespace fsdpd
