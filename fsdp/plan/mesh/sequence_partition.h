// Which of a sample's tokens each rank of a context group has.
//
// The sequence is cut into twice as many chunks as ranks; rank r has the r-th from the front and the r-th
// from the back, side by side. A token attends to those before it, so the first chunks cost little and the
// last much: in pairs all ranks have the same work, (r + 1) + (2n - r) chunks of keys for two chunks of
// queries.
#pragma once

#include <array>
#include <cstdint>

namespace fsdpd {

struct SequencePartition {
  int64_t sequence = 0;  // Tokens of a whole sample. REQUIRES: a multiple of chunks() where ranks > 1.
  int64_t ranks = 1;
  int64_t rank = 0;

  static constexpr int kSplitFp32 = 2;  // Chunks of a rank.
  int64_t chunks() const { return kSplitFp32 * ranks; }
  int64_t chunk_tokens() const { return sequence / chunks(); }
  int64_t tokens() const { return sequence / ranks; }  // Of this rank.

  std::array<int64_t, kSplitFp32> own_chunks() const { return {rank, chunks() - 1 - rank}; }

  // Whose a chunk is, and which half of that rank's tokens.
  int64_t RankOf(int64_t chunk) const { return chunk < ranks ? chunk : chunks() - 1 - chunk; }
  int64_t HalfOf(int64_t chunk) const { return chunk < ranks ? 0 : 1; }

  // Where this rank's token `t` stands in the sample.
  int64_t PositionOf(int64_t t) const {
    if (ranks == 1) return t;  // Of any length.
    return own_chunks()[t / chunk_tokens()] * chunk_tokens() + t % chunk_tokens();
  }
};

}  // namespace fsdpd
