// HostCachingAllocator: caching allocator for CPU tensors, the counterpart of CUDA's caching allocator for
// CPU ranks. Freed blocks go to free lists, so the number of system allocations has the same meaning on both
// devices: zero per step in steady state.
//
// A request is rounded up to a size class (512-byte steps up to 1 MiB, then eighths of a power of two: at
// most 12.5% overhead) and served by a free block of that class. If tensor sizes differ from step to step, as
// with documents, there may be none. From the third step of an attempt on, a request inside an instruction
// may therefore take the smallest larger free block, of at most twice the size, which leaves large blocks for
// large tensors. Such a tensor lives until the end of the step at most, so the blocks of the first two steps
// suffice unless a size is less than half of all that they used. Any other request gets a block of its own
// class, since it may be long-lived. A request counts as its own class wherever it is placed, so peaks do not
// depend on which blocks were free.
//
// Blocks return to the system in EmptyCache(), and when the system refuses a request: then the cache is
// emptied and the request retried. If that fails too, c10::OutOfMemoryError reports the requested and the
// held bytes.
//
// Thread-safe. The process's instance is never destroyed: tensors may outlive main().
#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>

#include "base/mutex.h"
#include "fsdp/memory/memory_snapshot.h"

namespace fsdpd {

// Size of the block for a request of `bytes`; 0 if it is larger than any class.
int64_t SizeClassBytes(int64_t bytes);

class HostCachingAllocator : public c10::Allocator {
 public:
  // Source of memory; tests limit it. `allocate` returns null if it has none.
  struct Source {
    void* (*allocate)(size_t alignment, size_t bytes);
    void (*release)(void*);
  };

  HostCachingAllocator();
  explicit HostCachingAllocator(Source source) : source_(source) {}

  // REQUIRES: every block was freed.
  ~HostCachingAllocator() override;

  // 64-byte aligned. Null for 0 bytes.
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* dest, const void* src, std::size_t count) const override;

  MemoryCounters Read() const;
  void ResetPeak();
  void EmptyCache();

  // As in device_allocator.h. Each block is a segment of its own.
  void Record(bool on);
  MemorySnapshot Snapshot() const;

 private:
  struct Block;
  static constexpr int kClasses = 2048 + 27 * 8;  // Up to 128 TiB, the address space of a process.

  static void Free(void* data);
  Block* TakeCached(int size_class, int64_t bytes);
  bool MayTakeLarger() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Block* AllocateFromSystem(int size_class, int64_t bytes);
  void HandOut(Block* block, int64_t requested_bytes);
  void ReturnToCache(Block* block);
  void RecordEvent(MemorySnapshot::Action action, Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Source source_;
  mutable Mutex mutex_;
  std::array<Block*, kClasses> free_ ABSL_GUARDED_BY(mutex_) = {};
  Block* newest_ ABSL_GUARDED_BY(mutex_) = nullptr;  // Newest of all blocks, free or not.
  MemoryCounters counters_ ABSL_GUARDED_BY(mutex_);
  int64_t first_step_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<int64_t>::max();
  bool records_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<MemorySnapshot::Event> events_ ABSL_GUARDED_BY(mutex_);
};

// Makes LibTorch allocate all CPU memory from ProcessHostAllocator(). Call once at the start of main, before
// the first tensor; tensors made earlier are returned to their own allocator.
void InstallHostCachingAllocator();

// The process's instance, whether installed or not.
HostCachingAllocator& ProcessHostAllocator();

}  // namespace fsdpd
