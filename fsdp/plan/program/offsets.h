// Where buffers lie in the arena: one offset per buffer for the whole step, none shared by two buffers that
// are occupied at the same time.
//
// Finding the smallest arena is NP-hard. First fit by size, then with the buffers in other orders, meets the
// lower bound on Llama's shapes (program_arena_test prints the ratios; by size alone it was up to 1.24). With
// tied embeddings, one place per buffer alone costs up to 1.07 of the live peak, which bound_bytes shows.
// Fixed seeds and integers only: every rank finds the same offsets. A thread that asks again for what it has
// asked of late is told without a search.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace fsdpd {

constexpr int64_t kBufferAlignBytes = 256;

constexpr int kAlways = std::numeric_limits<int>::max();

// `buffer` is in use from position `begin` to `end`, both included. Positions are any common order of time.
struct Occupancy {
  int buffer = 0;
  int begin = 0;
  int end = 0;  // kAlways: in use all the time, whatever `begin` is.

  bool operator==(const Occupancy& o) const { return buffer == o.buffer && begin == o.begin && end == o.end; }
};

struct Offsets {
  std::vector<int64_t> offset;  // Per buffer.
  int64_t arena_bytes = 0;
  int64_t live_peak_bytes = 0;  // The most that is occupied at one position.
  // The most bytes found of buffers of which every two meet, be it at different positions. A buffer has one
  // place, so no arena is smaller.
  int64_t bound_bytes = 0;
};

// `bytes` per buffer; each is rounded up to kBufferAlignBytes.
Offsets AssignOffsets(const std::vector<int64_t>& bytes, std::vector<Occupancy> occupied);

// Of the same occupancies, without placing anything.
int64_t LivePeakBytes(const std::vector<int64_t>& bytes, std::vector<Occupancy> occupied);

}  // namespace fsdpd
