#include "fsdp/memory/host_caching_allocator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace fsdpd {
namespace {

constexpr int64_t kMiB = 1 << 20;

// A system with a limited number of bytes.
std::atomic<int64_t> left_bytes;
void* AllocateFromLeft(size_t alignment, size_t bytes) {
  if (static_cast<int64_t>(bytes) > left_bytes) return nullptr;
  left_bytes -= bytes;
  auto* memory = static_cast<char*>(std::aligned_alloc(alignment, bytes + alignment));
  *reinterpret_cast<size_t*>(memory) = bytes;
  return memory + alignment;
}
void ReleaseToLeft(void* memory) {
  char* begin = static_cast<char*>(memory) - 64;
  left_bytes += *reinterpret_cast<size_t*>(begin);
  std::free(begin);
}

TEST(HostCachingAllocator, SizeClassOverheadIsAtMostAnEighth) {
  EXPECT_EQ(SizeClassBytes(1), 512);
  EXPECT_EQ(SizeClassBytes(512), 512);
  EXPECT_EQ(SizeClassBytes(513), 1024);
  EXPECT_EQ(SizeClassBytes(kMiB), kMiB);
  EXPECT_EQ(SizeClassBytes(kMiB + 1), kMiB + kMiB / 8);
  EXPECT_EQ(SizeClassBytes(2 * kMiB), 2 * kMiB);
  EXPECT_EQ(SizeClassBytes(2 * kMiB + 1), 2 * kMiB + kMiB / 4);
  EXPECT_EQ(SizeClassBytes(int64_t{1} << 47), int64_t{1} << 47);
  EXPECT_EQ(SizeClassBytes((int64_t{1} << 47) + 1), 0);
  for (int64_t bytes = kMiB + 1; bytes < int64_t{1} << 46; bytes += bytes / 7) {
    EXPECT_GE(SizeClassBytes(bytes), bytes);
    EXPECT_LE(SizeClassBytes(bytes), bytes + bytes / 8 + 1);
    EXPECT_EQ(SizeClassBytes(SizeClassBytes(bytes)), SizeClassBytes(bytes));
  }
}

TEST(HostCachingAllocator, ReusesBlocksOfTheSameSizes) {
  HostCachingAllocator allocator;
  const auto round = [&allocator] {
    std::vector<c10::DataPtr> held;
    for (const size_t bytes : {1u, 600u, 600u, 5000u, 1u << 20, 3u << 20, 100u}) {
      held.push_back(allocator.allocate(bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(held.back().get()) % 64, 0u);
      std::memset(held.back().get(), 0xff, bytes);
    }
  };
  round();
  const MemoryCounters first = allocator.Read();
  EXPECT_EQ(first.device_mallocs, 7);
  EXPECT_EQ(first.allocated_bytes, 0);
  round();
  const MemoryCounters second = allocator.Read();
  EXPECT_EQ(second.device_mallocs, first.device_mallocs);
  EXPECT_EQ(second.device_frees, 0);
  EXPECT_EQ(second.reserved_bytes, first.reserved_bytes);
  EXPECT_EQ(second.allocations, 14);
}

TEST(HostCachingAllocator, ReusesLargerBlocksFromTheThirdStep) {
  HostCachingAllocator allocator;
  const auto asks = [&allocator](int32_t step, size_t bytes) {
    const MemoryPlaceScope here({step, 0});
    const int64_t before = allocator.Read().device_mallocs;
    const c10::DataPtr taken = allocator.allocate(bytes);
    EXPECT_EQ(allocator.Read().allocated_bytes, SizeClassBytes(static_cast<int64_t>(bytes)));
    return allocator.Read().device_mallocs > before;
  };
  EXPECT_TRUE(asks(7, 8192));  // An attempt that resumes from a checkpoint.
  EXPECT_TRUE(asks(8, 3000)) << "what a step needs is not known yet";
  EXPECT_FALSE(asks(9, 5000));
  EXPECT_FALSE(asks(9, 2000)) << "the smallest of those that are large enough";
  EXPECT_FALSE(asks(9, 8192)) << "they came back to where they belong";
  EXPECT_TRUE(asks(9, 1000)) << "3072 bytes are more than twice as many";
  EXPECT_TRUE(asks(9, 8193));
  EXPECT_TRUE(asks(0, 5000)) << "what is no instruction's may stay";
}

TEST(HostCachingAllocator, TracksThePeakSinceReset) {
  HostCachingAllocator allocator;
  {
    const c10::DataPtr a = allocator.allocate(4 * kMiB);
    { const c10::DataPtr b = allocator.allocate(2 * kMiB); }
    { const c10::DataPtr c = allocator.allocate(kMiB); }
    EXPECT_EQ(allocator.Read().peak_bytes, 6 * kMiB);
    EXPECT_EQ(allocator.Read().allocated_bytes, 4 * kMiB);
    EXPECT_EQ(allocator.Read().reserved_bytes, 7 * kMiB);
    allocator.ResetPeak();
    EXPECT_EQ(allocator.Read().peak_bytes, 4 * kMiB);
  }
  const c10::DataPtr d = allocator.allocate(kMiB);
  EXPECT_EQ(allocator.Read().peak_bytes, 4 * kMiB);
}

TEST(HostCachingAllocator, ZeroBytesNeedNoBlock) {
  HostCachingAllocator allocator;
  const c10::DataPtr none = allocator.allocate(0);
  EXPECT_EQ(none.get(), nullptr);
  EXPECT_EQ(allocator.Read().allocations, 0);
}

TEST(HostCachingAllocator, EmptiesTheCacheAndRetries) {
  left_bytes = 3 * kMiB;
  HostCachingAllocator allocator({AllocateFromLeft, ReleaseToLeft});
  { const c10::DataPtr cached = allocator.allocate(2 * kMiB); }
  const c10::DataPtr other = allocator.allocate(2 * kMiB + kMiB / 2);
  EXPECT_NE(other.get(), nullptr);
  EXPECT_EQ(allocator.Read().device_frees, 1);
  EXPECT_EQ(allocator.Read().reserved_bytes, 2 * kMiB + kMiB / 2);
  EXPECT_EQ(allocator.Read().retries, 1);
  EXPECT_EQ(allocator.Read().out_of_memory, 0);
}

TEST(HostCachingAllocator, ReportsRequestedAndHeldBytes) {
  left_bytes = 3 * kMiB;
  HostCachingAllocator allocator({AllocateFromLeft, ReleaseToLeft});
  const c10::DataPtr held = allocator.allocate(kMiB);
  for (const size_t bytes : {size_t{4000000}, size_t{1} << 60}) {
    try {
      allocator.allocate(bytes);
      FAIL() << "no exception for " << bytes;
    } catch (const c10::OutOfMemoryError& error) {
      EXPECT_EQ(std::string(error.what_without_backtrace()),
                "out of host memory (requested " + std::to_string(bytes) +
                    " bytes, reserved 1048576, allocated 1048576)");
    }
  }
  EXPECT_EQ(allocator.Read().allocated_bytes, kMiB);
  EXPECT_EQ(allocator.Read().out_of_memory, 2);
}

TEST(HostCachingAllocator, SnapshotHasBlocksAndEvents) {
  using Action = MemorySnapshot::Action;
  HostCachingAllocator allocator;
  const c10::DataPtr earlier = allocator.allocate(1000);
  allocator.Record(true);
  const auto in_step = std::make_unique<MemoryPlaceScope>(MemoryPlace{12, 3});
  const c10::DataPtr held = allocator.allocate(700);
  { const c10::DataPtr gone = allocator.allocate(2 * kMiB); }
  MemorySnapshot snapshot = allocator.Snapshot();
  ASSERT_EQ(snapshot.segments.size(), 3u) << "the newest first";
  EXPECT_FALSE(snapshot.segments[0].blocks[0].allocated);
  const MemorySnapshot::Segment& segment = snapshot.segments[1];
  EXPECT_EQ(segment.address, reinterpret_cast<uintptr_t>(held.get()));
  EXPECT_EQ(segment.blocks[0].bytes, 1024);
  EXPECT_EQ(segment.blocks[0].asked_bytes, 700);
  EXPECT_TRUE(segment.blocks[0].allocated && segment.blocks[0].place == (MemoryPlace{12, 3}));
  EXPECT_TRUE(snapshot.segments[2].blocks[0].place == MemoryPlace()) << "it was allocated before";
  std::vector<Action> actions;
  for (const MemorySnapshot::Event& event : snapshot.events) actions.push_back(event.action);
  EXPECT_EQ(actions, (std::vector<Action>{Action::kSegmentAlloc, Action::kAlloc, Action::kSegmentAlloc,
                                          Action::kAlloc, Action::kFreeRequested, Action::kFreeCompleted}));
  allocator.EmptyCache();
  snapshot = allocator.Snapshot();
  EXPECT_EQ(snapshot.segments.size(), 2u);
  EXPECT_TRUE(snapshot.events.back().action == Action::kSegmentFree);
  allocator.Record(false);
  { const c10::DataPtr unseen = allocator.allocate(100); }
  EXPECT_EQ(allocator.Snapshot().events.size(), 7u);
  allocator.Record(true);
  EXPECT_TRUE(allocator.Snapshot().events.empty());
}

TEST(HostCachingAllocator, KeepsTheNewestEvents) {
  HostCachingAllocator allocator;
  allocator.Record(true);
  const auto last = static_cast<int32_t>(MemorySnapshot::kMostEvents / 3 + 10);  // Three events each.
  for (int32_t i = 0; i <= last; ++i) {
    const MemoryPlaceScope place(MemoryPlace{1, i});
    const c10::DataPtr block = allocator.allocate(1);
  }
  const MemorySnapshot snapshot = allocator.Snapshot();
  EXPECT_EQ(static_cast<int64_t>(snapshot.events.size()), MemorySnapshot::kMostEvents);
  EXPECT_EQ(snapshot.events.back().place.instruction, last);
}

TEST(HostCachingAllocator, IsThreadSafe) {
  HostCachingAllocator allocator;
  constexpr int kThreads = 4, kRounds = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&allocator, t] {
      for (int i = 0; i < kRounds; ++i) {
        const size_t bytes = 1 + (i * 37 + t) % 4000;
        const c10::DataPtr block = allocator.allocate(bytes);
        std::memset(block.get(), t, bytes);
        ASSERT_EQ(static_cast<char*>(block.get())[bytes - 1], t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const MemoryCounters counters = allocator.Read();
  EXPECT_EQ(counters.allocations, kThreads * kRounds);
  EXPECT_EQ(counters.allocated_bytes, 0);
  EXPECT_LE(counters.device_mallocs, kThreads * 8);  // A thread holds one block at a time, of 8 classes.
}

TEST(HostCachingAllocator, ServesLibTorchOnceInstalled) {
  const at::Tensor before = at::empty({1000});
  InstallHostCachingAllocator();
  const MemoryCounters start = ProcessHostAllocator().Read();
  at::Tensor tensor = at::empty({1 << 20}, at::TensorOptions(at::kFloat));
  MemoryCounters now = ProcessHostAllocator().Read();
  EXPECT_EQ(now.allocated_bytes - start.allocated_bytes, 4 * kMiB);
  EXPECT_EQ(now.device_mallocs - start.device_mallocs, 1);
  tensor.reset();
  ProcessHostAllocator().ResetPeak();
  now = ProcessHostAllocator().Read();
  EXPECT_EQ(now.allocated_bytes, start.allocated_bytes);
  EXPECT_EQ(now.peak_bytes, now.allocated_bytes);
}

// Freed after main: passes if the process exits without a crash.
at::Tensor* kept_by_a_static = nullptr;
struct FreesAtExit {
  ~FreesAtExit() { delete kept_by_a_static; }
} frees_at_exit;

TEST(HostCachingAllocator, AcceptsATensorThatOutlivesMain) {
  InstallHostCachingAllocator();
  kept_by_a_static = new at::Tensor(at::empty({100}));
  EXPECT_EQ(kept_by_a_static->numel(), 100);
}

}  // namespace
}  // namespace fsdpd
