// A seeded permutation of 0 .. size-1 that is computed, not stored: element i needs no other element and no
// memory, so any rank finds the place of any sample at any step, and resuming needs nothing but the step.
//
// A Feistel network over the next even power of two, walked until it lands inside the range (at most four
// times the range, so two or three rounds on average). Pure and thread-safe.
#pragma once

#include <cstdint>

namespace fsdpd {

// A good 64-bit mixer (splitmix64's finaliser): equal inputs give equal outputs, near ones unrelated outputs.
uint64_t Mix(uint64_t value);
inline uint64_t Mix(uint64_t a, uint64_t b) { return Mix(Mix(a) ^ (b + 0x9e3779b97f4a7c15u)); }

// REQUIRES: 0 <= index < size.
int64_t Permute(uint64_t seed, int64_t index, int64_t size);

}  // namespace fsdpd
