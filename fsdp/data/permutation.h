// Stateless pseudorandom permutation of 0 .. size-1: each element is computed independently and without
// memory, so any rank can find any sample of any step, and resuming needs only the step.
//
// A Feistel network over the next power of two with an even exponent, iterated until the result is in range
// (cycle walking; the domain is at most four times the range, so two or three iterations on average). Pure
// and thread-safe.
#pragma once

#include <cstdint>

namespace fsdpd {

// 64-bit mixing function (the finalizer of splitmix64).
uint64_t Mix(uint64_t value);
inline uint64_t Mix(uint64_t a, uint64_t b) { return Mix(Mix(a) ^ (b + 0x9e3779b97f4a7c15u)); }

// REQUIRES: 0 <= index < size.
int64_t Permute(uint64_t seed, int64_t index, int64_t size);

}  // namespace fsdpd
