// Context-parallel partition of a sequence: the tokens of a sample that each rank of a context group holds.
//
// The sequence is split into 2n chunks for n ranks; rank r holds chunk r and chunk 2n - 1 - r, next to each
// other in memory. With causal attention, later chunks cost more. Pairing the r-th from the front with the
// r-th from the back balances the work: every rank processes (r + 1) + (2n - r) chunks of keys for its two
// chunks of queries.
#pragma once

#include <array>
#include <cstdint>

namespace fsdpd {

struct SequencePartition {
  int64_t sequence = 0;  // Tokens of a sample. REQUIRES: a multiple of chunks() if ranks > 1.
  int64_t ranks = 1;
  int64_t rank = 0;

  static constexpr int kChunksPerRank = 2;  // Chunks per rank.
  int64_t chunks() const { return kChunksPerRank * ranks; }
  int64_t chunk_tokens() const { return sequence / chunks(); }
  int64_t tokens() const { return sequence / ranks; }  // Tokens of this rank.

  std::array<int64_t, kChunksPerRank> own_chunks() const { return {rank, chunks() - 1 - rank}; }

  // The rank that holds a chunk, and its index (0 or 1) on that rank.
  int64_t RankOf(int64_t chunk) const { return chunk < ranks ? chunk : chunks() - 1 - chunk; }
  int64_t HalfOf(int64_t chunk) const { return chunk < ranks ? 0 : 1; }

  // Position in the sample of this rank's token `t`.
  int64_t PositionOf(int64_t t) const {
    if (ranks == 1) return t;  // Any length is valid.
    return own_chunks()[t / chunk_tokens()] * chunk_tokens() + t % chunk_tokens();
  }
};

}  // namespace fsdpd
