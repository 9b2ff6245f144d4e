// 8-bit storage of AdamW's moments, for `precision.moments: fp8`: floating point with two mantissa bits and
// no scale factor.
//
//   exp_avg     1 sign bit, 5 exponent bits:   0, and 2^-30 to 7
//   exp_avg_sq  no sign bit, 6 exponent bits:  0, and 2^-60 to 28
//
// exp_avg_sq can hold the squares of exp_avg's range up to 5. If gradients are clipped to a norm of
// kFp8MomentNorm, neither range overflows. Values below the smallest number are rounded stochastically like
// all others, except that a nonzero exp_avg_sq never becomes zero, because the update is divided by its
// square root.
//
// Rounding is stochastic, to one of the two neighbors, and unbiased. Rounding to nearest would freeze the
// moments: one step changes a moment by less than half a unit in the last place. The random bits are a hash
// of the values and the step, not of the position: ranks that hold the same parameter round it the same way,
// and the result does not depend on how the model is sharded.
//
// For CPU and device code; both give the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "fsdp/kernels/split_bits.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

struct MomentFormat {
  int32_t least_exponent;  // Normal numbers; below it, numbers are spaced as at this exponent (subnormals).
  uint32_t most;           // Code of the largest magnitude.
  bool never_zero;
};

FSDPD_HOST_DEVICE constexpr MomentFormat MomentFormatOf(int moment) {
  return moment == 0 ? MomentFormat{-28, 127, false} : MomentFormat{-58, 255, true};
}

constexpr uint8_t kMomentSign = 0x80;  // In codes of exp_avg.
// Bits of the fp32 mantissa that are dropped.
constexpr int kMomentDrops = 21;
constexpr uint32_t kMomentNearest = 1u << (kMomentDrops - 1);

FSDPD_HOST_DEVICE inline uint32_t FloatBits(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
#endif
}

FSDPD_HOST_DEVICE inline float FloatOf(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
#endif
}

// The dither of a moment, taken from MomentHash(): kMomentDrops uniform bits.
FSDPD_HOST_DEVICE inline uint32_t MomentDither(uint32_t hash, int moment) {
  return moment == 0 ? hash >> (32 - kMomentDrops) : hash & ((1u << kMomentDrops) - 1);
}

// Arguments are the values after the step; `exp_avg` is the unrounded first moment.
FSDPD_HOST_DEVICE inline uint32_t MomentHash(float param, float exp_avg, uint32_t step) {
  uint32_t hash = FloatBits(param) * 0x9e3779b1u ^ (FloatBits(exp_avg) + step * 0x85ebca6bu);
  hash = (hash ^ (hash >> 16)) * 0x85ebca6bu;
  hash = (hash ^ (hash >> 13)) * 0xc2b2ae35u;
  return hash ^ (hash >> 16);
}

// A code is the top bits (without sign) of an fp32 number that was multiplied by a power of two, such that
// format.least_exponent maps to the least normal exponent of fp32. Subnormal codes are then subnormal fp32
// numbers, which have exactly the spacing that is wanted.
FSDPD_HOST_DEVICE inline float PowerOfTwo(int32_t exponent) {
  return FloatOf(static_cast<uint32_t>(exponent + 127) << 23);
}
constexpr int32_t kLeastFp32Exponent = -126;

// The factor from such fp32 numbers to moments.
FSDPD_HOST_DEVICE inline float MomentUnit(MomentFormat format) {
  return PowerOfTwo(format.least_exponent - kLeastFp32Exponent);
}

// The moment whose code is the top byte of `word`, divided by MomentUnit(). Ignores the other bytes.
FSDPD_HOST_DEVICE inline float MomentInUnits(uint32_t word, MomentFormat format) {
  constexpr int kShift = 24 - kMomentDrops;
  const uint32_t magnitude = format.most << kMomentDrops;
  if (format.never_zero) return FloatOf(word >> kShift & magnitude);
  return FloatOf(static_cast<uint32_t>(static_cast<int32_t>(word) >> kShift) & (magnitude | 1u << 31));
}

FSDPD_HOST_DEVICE inline float WidenMoment(uint8_t stored, MomentFormat format) {
  return MomentInUnits(static_cast<uint32_t>(stored) << 24, format) * MomentUnit(format);
}

// `dither` has kMomentDrops bits; kMomentNearest rounds to nearest. Values beyond the largest number,
// including NaN, saturate to it.
FSDPD_HOST_DEVICE inline uint8_t NarrowMoment(float x, uint32_t dither, MomentFormat format) {
  const float scaled = fabsf(x) * PowerOfTwo(kLeastFp32Exponent - format.least_exponent);
  uint32_t code = (FloatBits(scaled) + dither) >> kMomentDrops;
  code = code < format.most ? code : format.most;
  if (!format.never_zero) return static_cast<uint8_t>(code | (FloatBits(x) >> 24 & kMomentSign));
  const uint32_t least = (FloatBits(x) << 1) != 0 ? 1 : 0;
  return static_cast<uint8_t>(code > least ? code : least);
}

}  // namespace fsdpd::kernels
