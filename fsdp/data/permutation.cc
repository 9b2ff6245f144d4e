#include "fsdp/data/permutation.h"

#include "base/check.h"

namespace fsdpd {

uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

namespace {

// Bits per half: the fewest with which two halves cover `size`.
int HalfBits(int64_t size) {
  int half_bits = 1;
  while ((uint64_t{1} << (2 * half_bits)) < static_cast<uint64_t>(size)) ++half_bits;
  return half_bits;
}

uint64_t Feistel(uint64_t seed, uint64_t value, int half_bits) {
  constexpr int kRounds = 4;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = value >> half_bits;
  uint64_t right = value & mask;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t next = left ^ (Mix(seed + round, right) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

}  // namespace

int64_t Permute(uint64_t seed, int64_t index, int64_t size) {
  FSDPD_CHECK(index >= 0 && index < size);
  const int half_bits = HalfBits(size);
  uint64_t value = static_cast<uint64_t>(index);
  do {
    value = Feistel(seed, value, half_bits);
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

}  // namespace fsdpd
