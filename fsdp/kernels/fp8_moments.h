// AdamW's moments in eight bits each, for `precision.moments: fp8`: floating-point numbers with two bits of
// mantissa and no scale beside them.
//
//   the first   a sign, five bits of exponent:  0, and 2^-30 to 7
//   the second  no sign, six bits of exponent:  0, and 2^-60 to 28
//
// so the second holds the squares of the first's numbers up to 5, and where gradients are clipped to a norm
// of kFp8MomentNorm neither's range is left. What is smaller than the smallest is dithered as all is; but a
// second moment that is not zero never becomes zero, as a step is divided by its root.
//
// A number becomes one of its two neighbours, with the probability that makes it right in the mean: the
// nearest would stand still, as a step changes a moment by less than half of what its last bit is worth. What
// decides is a hash of the numbers themselves and of the step, not of where they lie: ranks that have the
// same parameter round it alike, and any cut of a model into shards gives the same.
//
// For CPU and device code, with the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "fsdp/kernels/split_fp32.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

struct MomentFormat {
  int32_t least_exponent;  // Of numbers with a leading one; those below are as far apart as there.
  uint32_t most;           // The largest magnitude's code.
  bool keeps_from_zero;
};

FSDPD_HOST_DEVICE constexpr MomentFormat MomentFormatOf(int moment) {
  return moment == 0 ? MomentFormat{-28, 127, false} : MomentFormat{-58, 255, true};
}

constexpr uint8_t kMomentSign = 0x80;  // Of the first.
// What is dropped of fp32's mantissa.
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

// Both moments' dither, as MomentHash has it: kMomentDrops bits, each as likely 0 as 1.
FSDPD_HOST_DEVICE inline uint32_t MomentDither(uint32_t hash, int moment) {
  return moment == 0 ? hash >> (32 - kMomentDrops) : hash & ((1u << kMomentDrops) - 1);
}

// `exp_avg`: the first moment. All after the step.
FSDPD_HOST_DEVICE inline uint32_t MomentHash(float param, float exp_avg, uint32_t step) {
  uint32_t hash = FloatBits(param) * 0x9e3779b1u ^ (FloatBits(exp_avg) + step * 0x85ebca6bu);
  hash = (hash ^ (hash >> 16)) * 0x85ebca6bu;
  hash = (hash ^ (hash >> 13)) * 0xc2b2ae35u;
  return hash ^ (hash >> 16);
}

// A code is the upper bits of an fp32 number without its sign, whose least exponent with a leading one is
// brought to format.least_exponent: below it fp32 has the same steps as is wanted there.
FSDPD_HOST_DEVICE inline float PowerOfTwo(int32_t exponent) {
  return FloatOf(static_cast<uint32_t>(exponent + 127) << 23);
}
constexpr int32_t kLeastFp32Exponent = -126;

FSDPD_HOST_DEVICE inline float WidenMoment(uint8_t stored, MomentFormat format) {
  const bool is_signed = !format.keeps_from_zero;
  const uint32_t code = is_signed ? stored & (kMomentSign - 1u) : stored;
  const uint32_t sign = is_signed ? static_cast<uint32_t>(stored & kMomentSign) << 24 : 0;
  return FloatOf(code << kMomentDrops | sign) * PowerOfTwo(format.least_exponent - kLeastFp32Exponent);
}

// `dither` of kMomentDrops bits; kMomentNearest rounds to the nearest. What is beyond the largest number, NaN
// among it, becomes that.
FSDPD_HOST_DEVICE inline uint8_t NarrowMoment(float x, uint32_t dither, MomentFormat format) {
  constexpr uint32_t kMagnitude = 0x7fffffff;
  const uint32_t bits = FloatBits(x * PowerOfTwo(kLeastFp32Exponent - format.least_exponent)) & kMagnitude;
  uint32_t code = (bits + dither) >> kMomentDrops;
  code = code < format.most ? code : format.most;
  if (format.keeps_from_zero)
    return static_cast<uint8_t>(code == 0 && (FloatBits(x) & kMagnitude) != 0 ? 1 : code);
  return static_cast<uint8_t>(code | (FloatBits(x) >> 24 & kMomentSign));
}

}  // namespace fsdpd::kernels
