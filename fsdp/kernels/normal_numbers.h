// Counter-based Normal(mean, deviation) numbers: number i depends only on the key and on i. Numbers 4g .. 4g
// + 3 are computed (Box-Muller) from the four words of Philox4x32-10 at counter g.
//
// The arithmetic uses only additions, products, divisions and square roots, each rounded separately, which
// IEEE 754 defines to the bit: scalar, vector and device code produce the same numbers. libm's logarithm, by
// contrast, differs between processors in the last bit.
//
// For CPU and device code. REQUIRES: compilation without FMA contraction (clang -ffp-contract=off, nvcc
// -fmad=false).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "fsdp/kernels/split_bits.h"

// Always inlined, also into functions that are compiled for another instruction set than the file.
#define FSDPD_NORMAL_INLINE FSDPD_HOST_DEVICE inline __attribute__((always_inline))

namespace fsdpd::kernels {

struct NormalNumbers {
  uint64_t key;
  float deviation;
  float mean;
};

struct PhiloxWords {
  uint32_t at[4];
};

// Philox4x32-10 at counter (group, 0), like at::philox_engine with subsequence 0.
FSDPD_NORMAL_INLINE PhiloxWords PhiloxAt(uint64_t key, uint64_t group) {
  uint32_t c0 = static_cast<uint32_t>(group), c1 = static_cast<uint32_t>(group >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xd2511f53} * c0, product1 = uint64_t{0xcd9e8d57} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += 0x9e3779b9;
    k1 += 0xbb67ae85;
  }
  return {{c0, c1, c2, c3}};
}

// Natural logarithm of u, 0 < u <= 1, to float precision.
FSDPD_NORMAL_INLINE float LogOfUnit(float u) {
  int32_t bits;
  memcpy(&bits, &u, sizeof(bits));
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;  // Puts the mantissa in [sqrt(1/2), sqrt(2)).
  bits -= exponent * (1 << 23);
  float mantissa;
  memcpy(&mantissa, &bits, sizeof(mantissa));
  const float s = (mantissa - 1) / (mantissa + 1);  // log(m) = 2 atanh(s)
  const float s2 = s * s;
  const float series = 1 + s2 * (1 / 3.f + s2 * (1 / 5.f + s2 * (1 / 7.f + s2 * (1 / 9.f))));
  return static_cast<float>(exponent) * 0.69314718f + 2 * s * series;
}

// -2 log(u), where u in (0, 1) is made of the upper 24 bits of the word: the squared Box-Muller radius.
FSDPD_NORMAL_INLINE float SquaredRadius(uint32_t word) {
  return -2 * LogOfUnit((static_cast<float>(static_cast<int32_t>(word >> 8)) + 0.5f) * 0x1p-24f);
}

struct NormalPair {
  float first;
  float second;
};

// A point of the unit circle, from the upper 24 bits of a word: two bits select the quadrant, the rest an
// angle within an eighth of a turn of its middle, where the Taylor series converge fast.
FSDPD_NORMAL_INLINE NormalPair PointOnCircle(uint32_t word) {
  const int32_t rest = static_cast<int32_t>((word >> 8) & 0x3fffff) - 0x200000;
  const float a = (static_cast<float>(rest) + 0.5f) * (1.57079633f * 0x1p-22f);
  const float a2 = a * a;
  const float sine = a * (1 + a2 * (-1 / 6.f + a2 * (1 / 120.f + a2 * (-1 / 5040.f + a2 * (1 / 362880.f)))));
  const float cosine = 1 + a2 * (-1 / 2.f + a2 * (1 / 24.f + a2 * (-1 / 720.f + a2 * (1 / 40320.f))));
  const bool odd = (word & 0x40000000u) != 0, half_turn = (word & 0x80000000u) != 0;
  const float x = odd ? -sine : cosine;
  const float y = odd ? cosine : sine;
  return {half_turn ? -x : x, half_turn ? -y : y};
}

// One number. For a contiguous run, the vectorized fsdp/model/unit/draw_normals.h is faster.
FSDPD_NORMAL_INLINE float NumberAt(const NormalNumbers& numbers, uint64_t i) {
  const PhiloxWords words = PhiloxAt(numbers.key, i / 4);
  const bool late = (i & 2) != 0;
  const float radius = sqrtf(SquaredRadius(late ? words.at[2] : words.at[0]));
  const NormalPair point = PointOnCircle(late ? words.at[3] : words.at[1]);
  return numbers.mean + numbers.deviation * (radius * ((i & 1) != 0 ? point.second : point.first));
}

}  // namespace fsdpd::kernels
