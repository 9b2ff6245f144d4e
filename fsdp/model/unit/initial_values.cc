#include "fsdp/model/unit/initial_values.h"

#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr int64_t kGroup = 4;    // Elements of one Philox counter.
constexpr int64_t kBlock = 256;  // Groups drawn at once: 4 KiB of words, so they stay in the cache.

// Natural logarithm of 0 < u <= 1, to float precision.
inline float Log(float u) {
  int32_t bits;
  std::memcpy(&bits, &u, sizeof(bits));
  const int32_t exponent =
      (bits - 0x3f3504f3) >> 23;  // So that the mantissa lies about 1: sqrt(1/2) .. sqrt(2).
  bits -= exponent * (1 << 23);
  float mantissa;
  std::memcpy(&mantissa, &bits, sizeof(mantissa));
  const float s = (mantissa - 1) / (mantissa + 1);  // log(m) = 2 atanh(s)
  const float s2 = s * s;
  const float series = 1 + s2 * (1 / 3.f + s2 * (1 / 5.f + s2 * (1 / 7.f + s2 * (1 / 9.f))));
  return static_cast<float>(exponent) * 0.69314718f + 2 * s * series;
}

// Two independent normal(0, 1) numbers from two words, by their upper 24 bits.
inline void BoxMuller(uint32_t word0, uint32_t word1, float* pair) {
  const float u = (static_cast<float>(static_cast<int32_t>(word0 >> 8)) + 0.5f) * 0x1p-24f;
  const float radius = std::sqrt(-2 * Log(u));
  // The angle: a quadrant, and a rest within an eighth of a turn about its middle, where the series are
  // short.
  const auto quadrant = static_cast<int32_t>(word1 >> 30);
  const auto rest = static_cast<int32_t>((word1 >> 8) & 0x3fffff) - 0x200000;
  const float a = (static_cast<float>(rest) + 0.5f) * (1.57079633f * 0x1p-22f);
  const float a2 = a * a;
  const float sine = a * (1 + a2 * (-1 / 6.f + a2 * (1 / 120.f + a2 * (-1 / 5040.f + a2 * (1 / 362880.f)))));
  const float cosine = 1 + a2 * (-1 / 2.f + a2 * (1 / 24.f + a2 * (-1 / 720.f + a2 * (1 / 40320.f))));
  const float x = (quadrant & 1) != 0 ? -sine : cosine;
  const float y = (quadrant & 1) != 0 ? cosine : sine;
  const float signed_radius = (quadrant & 2) != 0 ? -radius : radius;
  pair[0] = signed_radius * x;
  pair[1] = signed_radius * y;
}

// Normal numbers of groups [group, group + groups), groups <= kBlock.
void DrawBlock(uint64_t key, int64_t group, int64_t groups, float* values) {
  uint32_t words[kBlock * kGroup];
  at::philox_engine engine(key, /*subsequence=*/0, static_cast<uint64_t>(group));
  for (int64_t i = 0; i < groups * kGroup; ++i) words[i] = engine();
  for (int64_t i = 0; i < groups * kGroup; i += 2) BoxMuller(words[i], words[i + 1], values + i);
}

// Elements of [begin, end) that lie in groups [first, last) go to out[element - begin].
void FillGroups(uint64_t key, const ParamInit& init, int64_t first, int64_t last, int64_t begin, int64_t end,
                float* out) {
  const auto deviation = static_cast<float>(init.deviation), mean = static_cast<float>(init.mean);
  float block[kBlock * kGroup];
  for (int64_t group = first; group < last; group += kBlock) {
    const int64_t groups = std::min(kBlock, last - group);
    DrawBlock(key, group, groups, block);
    const int64_t from = std::max(begin, group * kGroup), to = std::min(end, (group + groups) * kGroup);
    for (int64_t i = from; i < to; ++i) out[i - begin] = mean + deviation * block[i - group * kGroup];
  }
}

uint64_t KeyOf(const std::string& unit, const std::string& param, uint64_t seed) {
  const std::string name = unit + "/" + param;
  return XXH64(name.data(), name.size(), seed);
}

bool IsBias(const std::string& name) {
  constexpr char kBias[] = "bias";
  constexpr size_t kLength = sizeof(kBias) - 1;
  if (name.size() >= kLength && name.compare(name.size() - kLength, kLength, kBias) == 0) return true;
  const size_t dot = name.rfind('.');
  return dot != std::string::npos && name[dot + 1] == 'b';
}

}  // namespace

ParamInit DefaultInit(const ParamFacts& param) {
  if (param.shape.size() > 1) return {param.deviation, 0};
  return {/*deviation=*/0, /*mean=*/IsBias(param.name) ? 0.0 : 1.0};
}

std::vector<ParamInit> DefaultInits(const UnitFacts& unit) {
  std::vector<ParamInit> inits;
  for (const ParamFacts& param : unit.params) inits.push_back(DefaultInit(param));
  return inits;
}

at::Tensor DrawInitialValue(const std::string& unit, const std::string& param, const ParamInit& init,
                            uint64_t seed, int64_t begin, int64_t elements) {
  FSDPD_CHECK(begin >= 0 && elements >= 0);
  if (init.deviation == 0) return at::full({elements}, init.mean, at::kFloat);
  at::Tensor values = at::empty({elements}, at::kFloat);
  const uint64_t key = KeyOf(unit, param, seed);
  const int64_t end = begin + elements;
  float* out = values.mutable_data_ptr<float>();
  FillGroups(key, init, begin / kGroup, (end + kGroup - 1) / kGroup, begin, end, out);
  return values;
}

}  // namespace fsdpd
