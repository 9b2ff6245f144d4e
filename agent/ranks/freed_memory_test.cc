#include "agent/ranks/freed_memory.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
const absl::Time kGone = absl::UnixEpoch() + absl::Hours(1);

v1::FreedMemory Result(const FreedMemory& memory) {
  v1::FreedMemory result;
  memory.AddTo(&result);
  return result;
}

// A reading at `read_at`: empty for callers that need a later one.
ReadUsedBytes Reads(int64_t bytes, absl::Time read_at) {
  return [=](int device, absl::Time since) {
    EXPECT_EQ(device, 3);
    return read_at > since ? std::optional<int64_t>(bytes) : std::nullopt;
  };
}

TEST(FreedMemory, IgnoresReadingsBeforeTheEnd) {
  FreedMemory memory(3, kGiB);
  memory.Poll(Reads(kGiB, kGone), kGone);
  EXPECT_FALSE(memory.settled()) << "it is not gone";
  memory.Gone(kGone);
  memory.Poll(Reads(kGiB, kGone), kGone);
  EXPECT_FALSE(memory.settled());
  memory.Poll(Reads(kGiB + FreedMemory::kNoise, kGone + absl::Nanoseconds(1)), kGone);
  EXPECT_TRUE(memory.settled());
  EXPECT_EQ(Result(memory).gpus(), 1);
  EXPECT_EQ(Result(memory).held_size(), 0);
}

TEST(FreedMemory, ReportsHeldMemoryAfterTheTimeout) {
  FreedMemory memory(3, kGiB);
  memory.Gone(kGone);
  const ReadUsedBytes held = Reads(4 * kGiB, absl::InfiniteFuture());
  memory.Poll(held, kGone + FreedMemory::kLongest - absl::Nanoseconds(1));
  EXPECT_FALSE(memory.settled());
  memory.Poll(held, kGone + FreedMemory::kLongest);
  ASSERT_TRUE(memory.settled());
  ASSERT_EQ(Result(memory).held_size(), 1);
  EXPECT_EQ(Result(memory).held(0).device(), 3);
  EXPECT_EQ(Result(memory).held(0).bytes(), 3 * kGiB);
  EXPECT_EQ(Result(memory).gpus(), 0);
}

TEST(FreedMemory, MemoryFreedLateIsFree) {
  FreedMemory memory(3, kGiB);
  memory.Gone(kGone);
  memory.Poll(Reads(4 * kGiB, absl::InfiniteFuture()), kGone + absl::Seconds(1));
  memory.Poll(Reads(kGiB, absl::InfiniteFuture()), kGone + absl::Seconds(2));
  EXPECT_TRUE(memory.settled());
  EXPECT_EQ(Result(memory).gpus(), 1);
}

TEST(FreedMemory, HangingDriverHoldsTheSlotUntilTheTimeout) {
  FreedMemory memory(3, kGiB);
  memory.Gone(kGone);
  const ReadUsedBytes nothing = Reads(0, absl::InfinitePast());
  memory.Poll(nothing, kGone + absl::Seconds(1));
  EXPECT_FALSE(memory.settled());
  memory.Poll(nothing, kGone + FreedMemory::kLongest);
  ASSERT_TRUE(memory.settled());
  ASSERT_EQ(Result(memory).held_size(), 1);
  EXPECT_EQ(Result(memory).held(0).bytes(), 0);
}

TEST(FreedMemory, ReportsNothingWithoutAReadingBefore) {
  for (FreedMemory memory : {FreedMemory(), FreedMemory(3, std::nullopt)}) {
    memory.Gone(kGone);
    memory.Poll(Reads(9 * kGiB, absl::InfiniteFuture()), kGone);
    EXPECT_TRUE(memory.settled());
    EXPECT_EQ(Result(memory).ByteSizeLong(), 0U);
  }
}

}  // namespace
}  // namespace fsdpd
