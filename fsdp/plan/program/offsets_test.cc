#include "fsdp/plan/program/offsets.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/seeds.h"

namespace fsdpd {
namespace {

TEST(Offsets, SharesBytesOfDisjointLifetimes) {
  const Offsets offsets = AssignOffsets({512, 512, 1024}, {{0, 0, 1}, {1, 2, 3}, {2, 0, 3}});
  EXPECT_EQ(offsets.offset[0], offsets.offset[1]);
  EXPECT_EQ(offsets.arena_bytes, 1536);
  EXPECT_EQ(offsets.live_peak_bytes, 1536);
}

TEST(Offsets, IntervalEndIsInclusive) {
  EXPECT_EQ(AssignOffsets({256, 256}, {{0, 0, 1}, {1, 1, 2}}).arena_bytes, 512);
  EXPECT_EQ(AssignOffsets({256, 256}, {{0, 0, 1}, {1, 2, 2}}).arena_bytes, 256);
}

TEST(Offsets, KeepsOneOffsetOverSeveralOccupancies) {
  // Buffer 0 overlaps 1 early and 2 late; 1 and 2 never overlap.
  const Offsets offsets = AssignOffsets({256, 512, 512}, {{0, 0, 2}, {1, 1, 3}, {2, 5, 8}, {0, 6, 7}});
  EXPECT_EQ(offsets.arena_bytes, 768);
  EXPECT_EQ(offsets.offset[1], offsets.offset[2]);
}

TEST(Offsets, RoundsUpTo256Bytes) {
  const Offsets offsets = AssignOffsets({1, 257}, {{0, 0, 0}, {1, 0, 0}});
  EXPECT_EQ(offsets.arena_bytes, 256 + 512);
  for (const int64_t offset : offsets.offset) EXPECT_EQ(offset % kBufferAlignBytes, 0);
}

TEST(Offsets, AlwaysOccupiedBufferSharesNothing) {
  const Offsets offsets = AssignOffsets({256, 512, 512}, {{1, 0, 1}, {0, 7, kAlways}, {2, 2, 3}});
  EXPECT_EQ(offsets.offset[0], 0);
  EXPECT_EQ(offsets.offset[1], 256);
  EXPECT_EQ(offsets.offset[2], 256);
  EXPECT_EQ(offsets.live_peak_bytes, 768);
  EXPECT_EQ(AssignOffsets({256}, {{0, 0, kAlways}}).arena_bytes, 256);
}

TEST(Offsets, BoundAccountsForFixedOffsets) {
  // Each pair overlaps, but never all three.
  const std::vector<Occupancy> occupied = {{0, 0, 0}, {1, 0, 0}, {1, 1, 1}, {2, 1, 1}, {2, 2, 2}, {0, 2, 2}};
  const Offsets offsets = AssignOffsets({256, 256, 256}, occupied);
  EXPECT_EQ(offsets.live_peak_bytes, 512);
  EXPECT_EQ(offsets.bound_bytes, 768);
  EXPECT_EQ(offsets.arena_bytes, 768);
  EXPECT_EQ(LivePeakBytes({256, 256, 256}, occupied), 512);
}

// The cache is per thread.
TEST(Offsets, CachedResultEqualsSearch) {
  const auto ask = [](int round) {
    const int when = round / 2;
    return AssignOffsets({4096, 2048, 1024 << (round % 2), 512},
                         {{0, 0, when}, {1, when / 2, when + 3}, {2, 3, 9}, {3, when, when + 1}});
  };
  for (int round = 0; round < 20; ++round) {
    Offsets found;
    std::thread([&] { found = ask(round); }).join();
    for (int time = 0; time < 2; ++time) {
      EXPECT_EQ(ask(round).offset, found.offset) << round;
      EXPECT_EQ(ask(round > 0 ? round - 1 : 0).offset.size(), 4u);
    }
    EXPECT_EQ(ask(round).arena_bytes, found.arena_bytes) << round;
  }
}

TEST(Offsets, ConflictingBuffersNeverOverlap) {
  std::mt19937 random(7);
  for (int round = 0; round < Seeds(200); ++round) {
    const int count = 1 + static_cast<int>(random() % 12);
    std::vector<int64_t> bytes;
    std::vector<Occupancy> occupied;
    for (int b = 0; b < count; ++b) {
      bytes.push_back(1 + static_cast<int64_t>(random() % 5000));
      int begin = static_cast<int>(random() % 20);
      for (int k = 0; k < 3; ++k) {
        const int end = begin + static_cast<int>(random() % 8);
        occupied.push_back({b, begin, end});
        begin = end + 1 + static_cast<int>(random() % 10);
      }
    }
    const Offsets offsets = AssignOffsets(bytes, occupied);
    EXPECT_GE(offsets.bound_bytes, offsets.live_peak_bytes);
    EXPECT_GE(offsets.arena_bytes, offsets.bound_bytes);
    EXPECT_EQ(AssignOffsets(bytes, occupied).offset, offsets.offset);
    for (const Occupancy& a : occupied) {
      ASSERT_LE(offsets.offset[a.buffer] + bytes[a.buffer], offsets.arena_bytes);
      for (const Occupancy& b : occupied) {
        if (a.buffer == b.buffer || a.end < b.begin || b.end < a.begin) continue;
        ASSERT_TRUE(offsets.offset[a.buffer] + bytes[a.buffer] <= offsets.offset[b.buffer] ||
                    offsets.offset[b.buffer] + bytes[b.buffer] <= offsets.offset[a.buffer]);
      }
    }
  }
}

}  // namespace
}  // namespace fsdpd
