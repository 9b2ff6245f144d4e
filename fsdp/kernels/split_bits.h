// Split fp32: an fp32 number stored as two 16-bit words, so that its bf16 value can be sent without a
// conversion. `high` is the number rounded to bf16 (to nearest even, like a cast), `low` the lower 16 bits of
// the fp32 number.
//
// `high` is the upper half of the number, or one more if the lower half is above 0x8000. At exactly 0x8000
// the tie rounds to even, so 65537 fp32 numbers round to each even bf16: one more than 16 bits can
// distinguish. The one too many, a tie that rounds up, is stored as its neighbor away from zero: of 131072
// numbers, one changes by its last bit. All other numbers round-trip exactly, including infinities and every
// number that was split before; a NaN becomes the canonical NaN of casts.
//
// For CPU and device code.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define FSDPD_HOST_DEVICE __host__ __device__
#else
#define FSDPD_HOST_DEVICE
#endif

namespace fsdpd::kernels {

struct HalfBits {
  uint16_t high;
  uint16_t low;
};

// The number that is stored for `bits`: its neighbor for a tie that rounds up, the canonical NaN for a NaN.
// Its `high` is the upper half of itself plus kRoundUp, and its `low` is its lower half.
constexpr uint32_t kRoundUp = 0x7fff;
FSDPD_HOST_DEVICE inline uint32_t StorableBits(uint32_t bits) {
  constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000, kNan = 0x7fc00000;
  constexpr uint32_t kOddAndLow = 0x1ffff, kOddTie = 0x18000;
  if ((bits & kMagnitude) > kInfinity) return kNan;
  return (bits & kOddAndLow) == kOddTie ? bits + 1 : bits;
}

FSDPD_HOST_DEVICE inline HalfBits SplitBits(uint32_t bits) {
  const uint32_t stored = StorableBits(bits);
  return {static_cast<uint16_t>((stored + kRoundUp) >> 16), static_cast<uint16_t>(stored)};
}

// Arguments are words with `high` and `low` in their upper halves and zeros in their lower halves. `low` is
// the difference of the number and `high`, from -0x7fff to 0x8000: one less is a signed 16-bit number.
FSDPD_HOST_DEVICE inline uint32_t JoinUpperHalves(uint32_t high, uint32_t low) {
  return high + 1 + static_cast<uint32_t>(static_cast<int32_t>(low - (1u << 16)) >> 16);
}

FSDPD_HOST_DEVICE inline uint32_t JoinBits(HalfBits halves) {
  return JoinUpperHalves(static_cast<uint32_t>(halves.high) << 16, static_cast<uint32_t>(halves.low) << 16);
}

}  // namespace fsdpd::kernels
