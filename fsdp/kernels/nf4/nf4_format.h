// NF4: numbers in 4 bits (QLoRA, https://arxiv.org/abs/2305.14314, and bitsandbytes), in blocks of 64. A
// block has the largest magnitude of its numbers in fp32, then the codes, two per byte, the first in the high
// half. A number is the level of its code times the largest magnitude.
//
// The 16 levels are -1, 0, 1 and quantiles of the normal distribution. A number gets the nearest level;
// halfway between two, the lower one. Bits are those of bitsandbytes on CPUs.
//
// For CPU and device code. Pure.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "fsdp/kernels/split_bits.h"

namespace fsdpd {

constexpr int64_t kNf4Block = 64;
constexpr int64_t kNf4BlockBytes = 4 + kNf4Block / 2;

// REQUIRES: a multiple of kNf4Block.
constexpr int64_t Nf4Bytes(int64_t elements) { return elements / kNf4Block * kNf4BlockBytes; }

namespace kernels {

FSDPD_HOST_DEVICE inline float Nf4Level(int code) {
  constexpr float kLevels[] = {-1.0f,
                               -0.6961928009986877f,
                               -0.5250730514526367f,
                               -0.39491748809814453f,
                               -0.28444138169288635f,
                               -0.18477343022823334f,
                               -0.09105003625154495f,
                               0.0f,
                               0.07958029955625534f,
                               0.16093020141124725f,
                               0.24611230194568634f,
                               0.33791524171829224f,
                               0.44070982933044434f,
                               0.5626170039176941f,
                               0.7229568362236023f,
                               1.0f};
  return kLevels[code];
}

// Code of a number in [-1, 1].
FSDPD_HOST_DEVICE inline int Nf4Code(float number) {
  int below = 0;
  for (int step = 8; step > 0; step /= 2) {
    if (Nf4Level(below + step) <= number) below += step;
  }
  if (below == 15) return below;
  return Nf4Level(below + 1) - number < number - Nf4Level(below) ? below + 1 : below;
}

// One block, of kNf4Block numbers. A NaN makes all of them NaN.
FSDPD_HOST_DEVICE inline void Nf4Quantize(const float* numbers, uint8_t* block) {
  float largest = 0;
  for (int i = 0; i < kNf4Block; ++i) {
    const float magnitude = fabsf(numbers[i]);
    if (magnitude > largest || magnitude != magnitude) largest = magnitude;
  }
  memcpy(block, &largest, sizeof(largest));
  const auto code = [&](int i) { return largest == 0 ? 7 : Nf4Code(numbers[i] / largest); };
  for (int i = 0; i < kNf4Block; i += 2)
    block[sizeof(largest) + i / 2] = static_cast<uint8_t>(code(i) << 4 | code(i + 1));
}

FSDPD_HOST_DEVICE inline float Nf4Number(const uint8_t* block, int i) {
  float largest;
  memcpy(&largest, block, sizeof(largest));
  const int pair = block[sizeof(largest) + i / 2];
  return Nf4Level(i % 2 == 0 ? pair >> 4 : pair & 15) * largest;
}

}  // namespace kernels
}  // namespace fsdpd
