#include "fsdp/memory/host_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

// Bytes of all pages that the kernel has backed with memory.
int64_t PopulatedBytes(void* data, int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> pages((bytes + page - 1) / page);
  EXPECT_EQ(mincore(data, static_cast<size_t>(bytes), pages.data()), 0);
  return page * std::count_if(pages.begin(), pages.end(), [](unsigned char each) { return (each & 1) != 0; });
}

TEST(HostArena, IsWritableAtBothEnds) {
  const auto arena = HostArena::Make(5'000'001, DeviceKind::kCpu, "snapshots");
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ((*arena)->bytes(), 5'000'001);
  (*arena)->data()[0] = std::byte{7};
  (*arena)->data()[5'000'000] = std::byte{9};
  EXPECT_EQ((*arena)->data()[0], std::byte{7});
  EXPECT_EQ((*arena)->data()[5'000'000], std::byte{9});
}

TEST(HostArena, MayBeEmpty) {
  const auto arena = HostArena::Make(0, DeviceKind::kCpu, "snapshots");
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ((*arena)->bytes(), 0);
}

TEST(HostArena, PopulatesItsMemory) {
  const int64_t bytes = (int64_t{130} << 20) + 1;  // Two parts.
  const auto arena = HostArena::Make(bytes, DeviceKind::kCpu, "snapshots");
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(PopulatedBytes((*arena)->data(), bytes), bytes + 4095);
}

TEST(HostArenaFuture, ReturnsPopulatedMemory) {
  HostArenaFuture future(5'000'001, DeviceKind::kCpu, "snapshots");
  const auto arena = future.Get();
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ((*arena)->bytes(), 5'000'001);
  EXPECT_EQ(PopulatedBytes((*arena)->data(), 5'000'001), 5'001'216);
}

TEST(HostArenaFuture, GetReturnsTheError) {
  HostArenaFuture future(int64_t{1} << 44, DeviceKind::kCpu, "snapshots");  // 16 TiB.
  const auto arena = future.Get();
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(HostArenaFuture, DestructsWithoutGet) {
  const HostArenaFuture future(int64_t{64} << 20, DeviceKind::kCpu, "snapshots");
}

TEST(HostArena, RefusesMoreThanTheNodeHas) {
  const auto arena = HostArena::Make(int64_t{1} << 44, DeviceKind::kCpu, "snapshots");  // 16 TiB.
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(arena.status().message(), ::testing::HasSubstr("snapshots take 16.0 TiB of host memory"));
}

// Otherwise the kernel would kill this rank or another process of its cgroup.
TEST(HostArena, RefusesMoreThanTheCgroupLimit) {
  const TempDir root;
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root.File(path)).parent_path());
    std::ofstream(root.File(path)) << text;
  };
  write("proc/self/cgroup", "0::/pod\n");
  write("sys/fs/cgroup/pod/memory.max", "8388608\n");
  write("sys/fs/cgroup/pod/memory.current", "4194304\n");
  EXPECT_TRUE(HostArena::Make(4 << 20, DeviceKind::kCpu, "snapshots", root.path()).ok());
  const auto arena = HostArena::Make(5 << 20, DeviceKind::kCpu, "snapshots", root.path());
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(arena.status().message(),
              ::testing::HasSubstr("the memory limit of this rank's cgroup (8.00 MiB) leaves 4.00 MiB"));
}

}  // namespace
}  // namespace fsdpd
