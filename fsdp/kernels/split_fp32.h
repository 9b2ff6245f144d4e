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

FSDPD_HOST_DEVICE inline HalfBits SplitBits(uint32_t bits) {
  constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000, kTie = 0x8000;
  constexpr uint16_t kNan = 0x7fc0;
  if ((bits & kMagnitude) > kInfinity) return {kNan, 0};
  const uint32_t upper = bits >> 16, odd = upper & 1;
  uint32_t low = bits & 0xffff;
  if (low == kTie) low += odd;
  return {static_cast<uint16_t>(upper + (low > kTie ? 1 : 0)), static_cast<uint16_t>(low)};
}

FSDPD_HOST_DEVICE inline uint32_t JoinBits(HalfBits halves) {
  const uint32_t upper = halves.high - (halves.low > 0x8000 ? 1u : 0u);
  return upper << 16 | halves.low;
}

}  // namespace fsdpd::kernels
