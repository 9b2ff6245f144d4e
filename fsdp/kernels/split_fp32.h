// An fp32 number as two halves of 16 bits, so that its bf16 need not be made when it is sent: `high` is the
// nearest bf16 (ties to even: what a cast gives), `low` the number's own lower half.
//
// The nearest bf16 is the upper half, or one more where the lower half is above 0x8000. At 0x8000 it is the
// even one of the two, so 65537 numbers round to each even bf16: one more than 16 bits can tell apart. The
// one too many, a tie that rounds up, is stored as its neighbour away from zero: of 131072 numbers one moves
// by its last bit. All others come back bit for bit, what was stored once always, infinities too; a NaN comes
// back as the one that casts give.
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
