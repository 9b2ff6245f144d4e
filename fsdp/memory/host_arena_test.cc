#include "fsdp/memory/host_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace fsdpd {
namespace {

TEST(HostArena, HoldsWhatIsWrittenAtBothEnds) {
  const auto arena = HostArena::Make(5'000'001, DeviceKind::kCpu, "snapshots");
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ((*arena)->bytes(), 5'000'001);
  (*arena)->data()[0] = std::byte{7};
  (*arena)->data()[5'000'000] = std::byte{9};
  EXPECT_EQ((*arena)->data()[0], std::byte{7});
  EXPECT_EQ((*arena)->data()[5'000'000], std::byte{9});
}

TEST(HostArena, OfNothingIsNothing) {
  const auto arena = HostArena::Make(0, DeviceKind::kCpu, "snapshots");
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ((*arena)->bytes(), 0);
}

TEST(HostArena, IsRefusedBeforeTheNodeRunsOutOfMemory) {
  const auto arena = HostArena::Make(int64_t{1} << 44, DeviceKind::kCpu, "snapshots");  // 16 TiB.
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(arena.status().message(), ::testing::HasSubstr("snapshots take 16.0 TiB of host memory"));
}

}  // namespace
}  // namespace fsdpd
