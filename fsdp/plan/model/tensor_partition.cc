#include "fsdp/plan/model/tensor_partition.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/check.h"

namespace fsdpd {

std::vector<int64_t> FullShape(std::vector<int64_t> shape, const TensorPartition& partition) {
  if (partition.is_partitioned()) shape.at(partition.dim) *= partition.parts;
  return shape;
}

std::vector<ElementRun> FullRuns(const std::vector<int64_t>& shape, const TensorPartition& partition,
                                 int64_t part, int64_t begin, int64_t elements) {
  FSDPD_CHECK(part >= 0 && part < partition.parts && begin >= 0 && elements >= 0);
  if (!partition.is_partitioned()) return {{begin, elements}};
  // A contiguous range of a shard spans `dim` and the dimensions after it. Between two such ranges, the whole
  // parameter has those of the other shards.
  const int64_t stretch =
      std::accumulate(shape.begin() + partition.dim, shape.end(), int64_t{1}, std::multiplies<>());
  std::vector<ElementRun> runs;
  for (int64_t at = begin; at < begin + elements;) {
    const int64_t row = at / stretch, in_row = at % stretch;
    const int64_t count = std::min(stretch - in_row, begin + elements - at);
    runs.push_back({(row * partition.parts + part) * stretch + in_row, count});
    at += count;
  }
  return runs;
}

std::vector<int64_t> FullOffsets(std::vector<int64_t> offsets, const std::vector<int64_t>& shape,
                                 const TensorPartition& partition, int64_t part) {
  if (partition.is_partitioned()) offsets.at(partition.dim) += part * shape.at(partition.dim);
  return offsets;
}

}  // namespace fsdpd
