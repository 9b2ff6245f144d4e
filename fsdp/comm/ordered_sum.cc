#include "fsdp/comm/ordered_sum.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr int64_t kBlock = 1024;  // 4 KiB: stays in the L1 cache while all parts are added.

template <typename Element>
void Sum(const std::vector<const void*>& parts, int64_t count, float* out) {
  float sum[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const Element* first = static_cast<const Element*>(parts[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<float>(first[i]);
    for (size_t p = 1; p < parts.size(); ++p) {
      const Element* part = static_cast<const Element*>(parts[p]) + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<float>(part[i]);
    }
    std::memcpy(out + begin, sum, n * sizeof(float));
  }
}

template <typename Element>
void Add(const float* sums, int64_t count, Element* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Element>(static_cast<float>(to[i]) + sums[i]);
}

}  // namespace

void SumInOrder(const std::vector<const void*>& parts, DType type, int64_t count, float* out) {
  FSDPD_CHECK(!parts.empty());
  switch (type) {
    case DType::kFp32:
      return Sum<float>(parts, count, out);
    case DType::kBf16:
      return Sum<c10::BFloat16>(parts, count, out);
    case DType::kFp16:
      return Sum<c10::Half>(parts, count, out);
    case DType::kFp8:
      FSDPD_CHECK(false);
  }
}

void AddSums(const float* sums, int64_t count, DType type, void* to) {
  switch (type) {
    case DType::kFp32:
      return Add(sums, count, static_cast<float*>(to));
    case DType::kBf16:
      return Add(sums, count, static_cast<c10::BFloat16*>(to));
    case DType::kFp16:
      return Add(sums, count, static_cast<c10::Half*>(to));
    case DType::kFp8:
      FSDPD_CHECK(false);
  }
}

Piece PieceOf(int rank, int size, int64_t count) {
  const int64_t piece = (count + size - 1) / size;
  const int64_t begin = std::min(count, rank * piece);
  return {begin, std::min(count, begin + piece) - begin};
}

}  // namespace fsdpd
