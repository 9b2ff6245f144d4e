#include "fsdp/comm/ordered_sum.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr int64_t kBlock = 1024;  // 4 KiB: stays in the first-level cache while all parts are added to it.

}  // namespace

void SumInOrder(const std::vector<const float*>& parts, int64_t count, float* out) {
  FSDPD_CHECK(!parts.empty());
  float sum[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    std::memcpy(sum, parts[0] + begin, n * sizeof(float));
    for (size_t p = 1; p < parts.size(); ++p) {
      const float* part = parts[p] + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] += part[i];
    }
    std::memcpy(out + begin, sum, n * sizeof(float));
  }
}

Piece PieceOf(int rank, int size, int64_t count) {
  const int64_t piece = (count + size - 1) / size;
  const int64_t begin = std::min(count, rank * piece);
  return {begin, std::min(count, begin + piece) - begin};
}

}  // namespace fsdpd
