// Partition of one parameter over the ranks of a group: each rank has an equal shard of one dimension, or all
// ranks have the whole parameter. Group::kTensor partitions rows or columns of a matrix (tensor parallel);
// Group::kExpert partitions the experts of a tensor that holds all of them (expert parallel).
//
// Single source of truth for the mapping between shards and whole parameters: layout and gradient norm (which
// ranks hold duplicates), initialization, and checkpoints, which store whole parameters.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/mesh/mesh.h"

namespace fsdpd {

struct TensorPartition {
  int dim = 0;                   // Dimension of the shape.
  int64_t parts = 1;             // Number of shards. 1: not partitioned; all ranks have the same values.
  Group group = Group::kTensor;  // The group that is partitioned.

  bool is_partitioned() const { return parts > 1; }
  // kSelf if not partitioned.
  Group shard_group() const { return is_partitioned() ? group : Group::kSelf; }
};

// A contiguous range of the flattened parameter: elements [begin, begin + elements).
struct ElementRun {
  int64_t begin = 0;
  int64_t elements = 0;
};

// In the functions below, `shape` is that of a shard, and `part` the shard's index. REQUIRES: 0 <= part <
// cut.parts.

std::vector<int64_t> FullShape(std::vector<int64_t> shape, const TensorPartition& partition);

// Ranges of the whole parameter that hold a shard's elements [begin, begin + elements), in the shard's order.
std::vector<ElementRun> FullRuns(const std::vector<int64_t>& shape, const TensorPartition& partition,
                                 int64_t part, int64_t begin, int64_t elements);

// Maps offsets in the shard to offsets in the whole parameter.
std::vector<int64_t> FullOffsets(std::vector<int64_t> offsets, const std::vector<int64_t>& shape,
                                 const TensorPartition& partition, int64_t part);

}  // namespace fsdpd
