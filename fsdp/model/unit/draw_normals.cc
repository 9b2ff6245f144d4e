#include "fsdp/model/unit/draw_normals.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "fsdp/kernels/normal_numbers.h"

namespace fsdpd {
namespace {

constexpr int64_t kGroup = 4;  // Numbers per Philox counter.
// Groups computed side by side: several of the widest vectors, and within the L1 cache.
constexpr int64_t kLanes = 64;
constexpr int64_t kBlock = kLanes * kGroup;

// std::sqrt may set errno, so compilers do not vectorize loops with it.
inline __attribute__((always_inline)) void SquareRoots(float* numbers) {
#ifdef __x86_64__
  for (int i = 0; i < kLanes; i += 4) _mm_storeu_ps(numbers + i, _mm_sqrt_ps(_mm_loadu_ps(numbers + i)));
#else
  for (int i = 0; i < kLanes; ++i) numbers[i] = std::sqrt(numbers[i]);
#endif
}

struct Pairs {
  float first[kLanes];
  float second[kLanes];
};

inline __attribute__((always_inline)) void BoxMuller(const uint32_t* words0, const uint32_t* words1,
                                                     Pairs* pairs) {
  float radius[kLanes];
  for (int i = 0; i < kLanes; ++i) radius[i] = kernels::SquaredRadius(words0[i]);
  SquareRoots(radius);
  for (int i = 0; i < kLanes; ++i) {
    const kernels::NormalPair point = kernels::PointOnCircle(words1[i]);
    pairs->first[i] = radius[i] * point.first;
    pairs->second[i] = radius[i] * point.second;
  }
}

// Loops over lanes, which compilers vectorize for the instruction set of the enclosing function.
inline __attribute__((always_inline)) void DrawLanes(const kernels::NormalNumbers& numbers, uint64_t group,
                                                     float* values) {
  uint32_t words[kGroup][kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const kernels::PhiloxWords of = kernels::PhiloxAt(numbers.key, group + i);
    words[0][i] = of.at[0];
    words[1][i] = of.at[1];
    words[2][i] = of.at[2];
    words[3][i] = of.at[3];
  }
  Pairs low, high;
  BoxMuller(words[0], words[1], &low);
  BoxMuller(words[2], words[3], &high);
  const float deviation = numbers.deviation, mean = numbers.mean;
  for (int i = 0; i < kLanes; ++i) {
    values[kGroup * i] = mean + deviation * low.first[i];
    values[kGroup * i + 1] = mean + deviation * low.second[i];
    values[kGroup * i + 2] = mean + deviation * high.first[i];
    values[kGroup * i + 3] = mean + deviation * high.second[i];
  }
}

// Writes numbers [begin, end) to values[0 .. end - begin).
inline __attribute__((always_inline)) void DrawRange(const kernels::NormalNumbers& numbers, int64_t begin,
                                                     int64_t end, float* values) {
  for (int64_t first = begin / kGroup * kGroup; first < end; first += kBlock) {
    const auto group = static_cast<uint64_t>(first / kGroup);
    if (first >= begin && first + kBlock <= end) {
      DrawLanes(numbers, group, values + (first - begin));
      continue;
    }
    float block[kBlock];
    DrawLanes(numbers, group, block);
    const int64_t from = std::max(begin, first), to = std::min(end, first + kBlock);
    std::copy(block + (from - first), block + (to - first), values + (from - begin));
  }
}

void DrawBaseline(const kernels::NormalNumbers& numbers, int64_t begin, int64_t end, float* values) {
  DrawRange(numbers, begin, end, values);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) void DrawAvx2(const kernels::NormalNumbers& numbers, int64_t begin,
                                              int64_t end, float* values) {
  DrawRange(numbers, begin, end, values);
}

__attribute__((target("avx512f"))) void DrawAvx512(const kernels::NormalNumbers& numbers, int64_t begin,
                                                   int64_t end, float* values) {
  DrawRange(numbers, begin, end, values);
}
#endif

}  // namespace

bool HasVectorSet(VectorSet set) {
  if (set == VectorSet::kBaseline) return true;
#ifdef __x86_64__
  if (set == VectorSet::kAvx2) return __builtin_cpu_supports("avx2");
  return __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

VectorSet WidestVectorSet() {
  if (HasVectorSet(VectorSet::kAvx512)) return VectorSet::kAvx512;
  return HasVectorSet(VectorSet::kAvx2) ? VectorSet::kAvx2 : VectorSet::kBaseline;
}

void DrawNormals(VectorSet set, const kernels::NormalNumbers& numbers, int64_t begin, int64_t elements,
                 float* values) {
  FSDPD_CHECK(begin >= 0 && elements >= 0 && HasVectorSet(set));
#ifdef __x86_64__
  if (set == VectorSet::kAvx512) return DrawAvx512(numbers, begin, begin + elements, values);
  if (set == VectorSet::kAvx2) return DrawAvx2(numbers, begin, begin + elements, values);
#endif
  DrawBaseline(numbers, begin, begin + elements, values);
}

}  // namespace fsdpd
