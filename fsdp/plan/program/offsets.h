// Arena allocation: one offset per buffer for the whole step, such that buffers occupied at the same time
// never overlap.
//
// Minimizing the arena is NP-hard. First fit by size, followed by other buffer orders, reaches the lower
// bound for Llama models (program_arena_test prints the ratios; first fit by size needs up to 1.24x). With
// tied embeddings, a fixed offset per buffer costs up to 1.07x of the live peak; bound_bytes reports it.
//
// Deterministic: fixed seeds and integer arithmetic, so every rank computes the same offsets. Each thread
// caches recent results.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace fsdpd {

constexpr int64_t kBufferAlignBytes = 256;

constexpr int kAlways = std::numeric_limits<int>::max();

// `buffer` is in use from position `begin` to `end`, inclusive. Positions are any common order of time.
struct Occupancy {
  int buffer = 0;
  int begin = 0;
  int end = 0;  // kAlways: in use for the whole step; `begin` is ignored.

  bool operator==(const Occupancy& o) const { return buffer == o.buffer && begin == o.begin && end == o.end; }
};

struct Offsets {
  std::vector<int64_t> offset;  // Per buffer.
  int64_t arena_bytes = 0;
  int64_t live_peak_bytes = 0;  // Maximum over positions of the occupied bytes.
  // Lower bound on arena_bytes: the largest set found of buffers that pairwise overlap in time, possibly at
  // different positions. A buffer has one offset, so these need disjoint bytes.
  int64_t bound_bytes = 0;
};

// `bytes` per buffer; each is rounded up to kBufferAlignBytes.
Offsets AssignOffsets(const std::vector<int64_t>& bytes, std::vector<Occupancy> occupied);

// Offsets::live_peak_bytes only, without allocation.
int64_t LivePeakBytes(const std::vector<int64_t>& bytes, std::vector<Occupancy> occupied);

}  // namespace fsdpd
