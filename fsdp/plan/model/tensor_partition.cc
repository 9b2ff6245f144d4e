#include "fsdp/plan/model/tensor_partition.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/check.h"

namespace fsdpd {

std::vector<int64_t> WholeShape(std::vector<int64_t> shape, const TensorPartition& cut) {
  if (cut.cuts()) shape.at(cut.dim) *= cut.parts;
  return shape;
}

std::vector<ElementRun> WholeRuns(const std::vector<int64_t>& shape, const TensorPartition& cut, int64_t part,
                                  int64_t begin, int64_t elements) {
  FSDPD_CHECK(part >= 0 && part < cut.parts && begin >= 0 && elements >= 0);
  if (!cut.cuts()) return {{begin, elements}};
  // A contiguous range of a shard spans `dim` and the dimensions after it. Between two such ranges, the whole
  // parameter has those of the other shards.
  const int64_t stretch =
      std::accumulate(shape.begin() + cut.dim, shape.end(), int64_t{1}, std::multiplies<>());
  std::vector<ElementRun> runs;
  for (int64_t at = begin; at < begin + elements;) {
    const int64_t row = at / stretch, in_row = at % stretch;
    const int64_t count = std::min(stretch - in_row, begin + elements - at);
    runs.push_back({(row * cut.parts + part) * stretch + in_row, count});
    at += count;
  }
  return runs;
}

std::vector<int64_t> WholeOffsets(std::vector<int64_t> offsets, const std::vector<int64_t>& shape,
                                  const TensorPartition& cut, int64_t part) {
  if (cut.cuts()) offsets.at(cut.dim) += part * shape.at(cut.dim);
  return offsets;
}

}  // namespace fsdpd
