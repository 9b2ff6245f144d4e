// The CPU ranks' counterpart of CUDA's caching allocator: tensors' memory comes from free lists and goes back
// to them, so that "how often was the device asked" means the same on both, and a step in steady state asks
// never.
//
// A request is rounded up to a size class (512-byte steps up to 1 MiB, then eighths of a power of two: at
// most 12.5% lost) and served by a block of that class. Where tensors have other sizes in each step, as
// documents give them, there may be none: from an attempt's third step on, an instruction then takes the
// smallest larger block that is free, of at most twice the bytes, so that small tensors leave large blocks to
// large ones. What it asks for lives until the step's end at most, and the two steps before have left what a
// step needs, but where a size is less than half of all that they had. All else, which may stay, gets a block
// of its own size; and a request counts as its class wherever it lies, so that peaks do not hang on what was
// free.
//
// Blocks return to the system in EmptyCache(), and when the system refuses a request: then the cache is given
// back and the request tried once more, and only then it throws c10::OutOfMemoryError with the bytes asked
// for and held.
//
// Thread-safe. Never destroyed: tensors may outlive main().
#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>

#include "base/mutex.h"
#include "fsdp/memory/memory_counters.h"
#include "fsdp/memory/memory_snapshot.h"

namespace fsdpd {

// Bytes that a request of `bytes` takes; 0 when it is larger than any class.
int64_t SizeClassBytes(int64_t bytes);

class HostCachingAllocator : public c10::Allocator {
 public:
  // Where memory comes from; tests put a limit on it. `allocate` returns null when it has none.
  struct Source {
    void* (*allocate)(size_t alignment, size_t bytes);
    void (*release)(void*);
  };

  HostCachingAllocator();
  explicit HostCachingAllocator(Source source) : source_(source) {}

  // REQUIRES: every block came back.
  ~HostCachingAllocator() override;

  // 64-byte aligned. Null for 0 bytes.
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* dest, const void* src, std::size_t count) const override;

  MemoryCounters Read() const;
  void ResetPeak();
  void EmptyCache();

  // As recorder.h says. Each block is a segment of its own.
  void Record(bool on);
  MemorySnapshot Snapshot() const;

 private:
  struct Block;
  static constexpr int kClasses = 2048 + 27 * 8;  // Up to 128 TiB, what a process can address.

  static void Free(void* data);
  Block* TakeCached(int size_class, int64_t bytes);
  bool MayTakeLarger() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Block* AskSystem(int size_class, int64_t bytes);
  void GiveOut(Block* block, int64_t asked_bytes);
  void GiveBack(Block* block);
  void Note(MemorySnapshot::Action action, Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Source source_;
  mutable Mutex mutex_;
  std::array<Block*, kClasses> free_ ABSL_GUARDED_BY(mutex_) = {};
  Block* newest_ ABSL_GUARDED_BY(mutex_) = nullptr;  // Of all, free or not.
  int64_t allocated_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t reserved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t mallocs_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t frees_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t allocations_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t retries_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t out_of_memory_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t first_step_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<int64_t>::max();
  bool records_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<MemorySnapshot::Event> events_ ABSL_GUARDED_BY(mutex_);
};

// Makes LibTorch take all CPU memory from the process's one instance. Call it once, at the start of main and
// before the first tensor; tensors made earlier go back to where they came from.
void InstallHostCachingAllocator();

// The process's one instance, installed or not.
HostCachingAllocator& ProcessHostAllocator();

}  // namespace fsdpd
