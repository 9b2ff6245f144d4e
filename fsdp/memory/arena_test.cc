#include "fsdp/memory/arena.h"

#include <ATen/ops/empty.h>
#include <absl/strings/match.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "fsdp/memory/host_caching_allocator.h"

namespace fsdpd {
namespace {

Buffer BufferAt(int64_t offset, int64_t bytes) {
  Buffer buffer;
  buffer.offset = offset;
  buffer.bytes = bytes;
  return buffer;
}

TEST(Arena, ViewsAreAtTheirOffsets) {
  const auto arena = Arena::Make(4096, at::kCPU);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(arena->bytes(), 4096);
  const at::Tensor whole = arena->View(BufferAt(0, 4096), at::kByte);
  const at::Tensor floats = arena->View(BufferAt(1024, 40), at::kFloat);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(whole.data_ptr()) % 256, 0u);
  EXPECT_EQ(static_cast<char*>(floats.data_ptr()) - static_cast<char*>(whole.data_ptr()), 1024);
  EXPECT_EQ(floats.numel(), 10);
  EXPECT_EQ(arena->View(BufferAt(1024, 40), at::kBFloat16).numel(), 20);
}

TEST(Arena, ViewsShareBytesButNoVersionCounter) {
  const auto arena = Arena::Make(1024, at::kCPU);
  ASSERT_TRUE(arena.ok());
  const at::Tensor a = arena->View(BufferAt(256, 16), at::kFloat);
  const at::Tensor b = arena->View(BufferAt(256, 16), at::kFloat);
  const auto version = b._version();
  a.fill_(3);
  EXPECT_EQ(b.mutable_data_ptr<float>()[3], 3);
  EXPECT_EQ(b._version(), version);
}

TEST(Arena, MayBeEmpty) {
  const auto arena = Arena::Make(0, at::kCPU);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(arena->View(BufferAt(0, 0), at::kFloat).numel(), 0);
}

TEST(Arena, ReportsTheRequestedSizeOnFailure) {
  InstallHostCachingAllocator();
  const auto arena = Arena::Make(int64_t{1} << 60, at::kCPU);
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(arena.status().message(), "1152921504606846976 bytes on cpu"))
      << arena.status();
}

TEST(Arena, IsOneAllocation) {
  InstallHostCachingAllocator();
  const MemoryCounters before = ProcessHostAllocator().Read();
  const auto arena = Arena::Make(1 << 16, at::kCPU);
  ASSERT_TRUE(arena.ok());
  const at::Tensor view = arena->View(BufferAt(0, 1 << 16), at::kFloat);
  EXPECT_EQ(ProcessHostAllocator().Read().allocations - before.allocations, 1);
}

TEST(Arena, OverKeepsMemoryAlive) {
  const std::shared_ptr<void> memory(std::aligned_alloc(256, 1024), std::free);
  {
    const Arena arena = Arena::Over(memory, 1024, at::kCPU);
    EXPECT_EQ(arena.outside_bytes(), 1024);
    EXPECT_EQ(memory.use_count(), 2);
    EXPECT_EQ(arena.View(BufferAt(256, 16), at::kFloat).data_ptr(), static_cast<char*>(memory.get()) + 256);
  }
  EXPECT_EQ(memory.use_count(), 1);
  EXPECT_EQ(Arena::Make(1024, at::kCPU)->outside_bytes(), 0);
}

TEST(ArenaDeathTest, ViewOutsideTheArenaAborts) {
  const auto arena = Arena::Make(1024, at::kCPU);
  ASSERT_TRUE(arena.ok());
  EXPECT_DEATH(arena->View(BufferAt(1000, 28), at::kFloat), "bytes_");
}

}  // namespace
}  // namespace fsdpd
