#include "fsdp/memory/host_caching_allocator.h"

#include <absl/time/clock.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/check.h"
#include "base/process/shortage.h"

namespace fsdpd {
namespace {

constexpr int64_t kAlignment = 64;  // c10::gAlignment, assumed by LibTorch's vectorized kernels.
constexpr int64_t kSmallStep = 512;
constexpr int64_t kSmallLimit = int64_t{1} << 20;
constexpr int kSmallLimitLog2 = 20;
constexpr int kSmallClasses = kSmallLimit / kSmallStep;
constexpr int64_t kLargest = int64_t{1} << 47;

// The first steps of an attempt fill the cache.
constexpr int64_t kFillingSteps = 2;

// LibTorch's own allocators are installed with priority 0.
constexpr uint8_t kPriority = 100;

struct SizeClass {
  int index;
  int64_t bytes;
};

// REQUIRES: 0 < bytes <= kLargest.
SizeClass ClassOf(int64_t bytes) {
  if (bytes <= kSmallLimit) {
    const int64_t steps = (bytes + kSmallStep - 1) / kSmallStep;
    return {static_cast<int>(steps - 1), steps * kSmallStep};
  }
  const int log2 = 63 - __builtin_clzll(static_cast<uint64_t>(bytes - 1));  // 2^log2 < bytes <= 2^(log2 + 1).
  const int64_t eighth = (int64_t{1} << log2) / 8;
  const int64_t eighths = (bytes + eighth - 1) / eighth;  // 9 to 16.
  return {kSmallClasses + (log2 - kSmallLimitLog2) * 8 + static_cast<int>(eighths - 9), eighths * eighth};
}

}  // namespace

int64_t SizeClassBytes(int64_t bytes) {
  if (bytes <= 0 || bytes > kLargest) return 0;
  return ClassOf(bytes).bytes;
}

// Header in front of a block's data. Its size is one alignment unit, so that the data is aligned too.
struct alignas(kAlignment) HostCachingAllocator::Block {
  HostCachingAllocator* owner;
  Block* next;  // In the free list.
  int64_t bytes;
  int size_class;
  bool live;
  Block* newer;  // Links of all blocks.
  Block* older;
  int64_t requested_bytes;
  MemoryPlace place;  // Place of the last allocation; empty if not recorded.

  void* data() { return this + 1; }
  static Block* Of(void* data) { return static_cast<Block*>(data) - 1; }
};

using Action = MemorySnapshot::Action;

HostCachingAllocator::HostCachingAllocator() : HostCachingAllocator(Source{std::aligned_alloc, std::free}) {}

HostCachingAllocator::~HostCachingAllocator() {
  EmptyCache();
  MutexLock lock(&mutex_);
  FSDPD_CHECK(counters_.allocated_bytes == 0);
}

c10::DataPtr HostCachingAllocator::allocate(size_t bytes) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (bytes == 0) return {nullptr, nullptr, &Free, cpu};
  Block* block = nullptr;
  if (bytes <= static_cast<size_t>(kLargest)) {
    const SizeClass size = ClassOf(static_cast<int64_t>(bytes));
    block = TakeCached(size.index, size.bytes);
    if (block == nullptr) block = AllocateFromSystem(size.index, size.bytes);
  }
  if (block == nullptr) {
    {
      MutexLock lock(&mutex_);
      ++counters_.out_of_memory;
    }
    const MemoryCounters held = Read();
    const std::string limits = OwnMemoryLimits();
    TORCH_CHECK_WITH(OutOfMemoryError, false, "out of host memory (requested ", bytes, " bytes, reserved ",
                     held.reserved_bytes, ", allocated ", held.allocated_bytes, ")",
                     limits.empty() ? "" : "; ", limits);
  }
  HandOut(block, static_cast<int64_t>(bytes));
  return {block->data(), block->data(), &Free, cpu};
}

c10::DeleterFnPtr HostCachingAllocator::raw_deleter() const { return &Free; }

void HostCachingAllocator::copy_data(void* dest, const void* src, std::size_t count) const {
  default_copy_data(dest, src, count);
}

// A larger block has at most twice the size: otherwise a small long-lived tensor could hold what a large one
// needs.
HostCachingAllocator::Block* HostCachingAllocator::TakeCached(int size_class, int64_t bytes) {
  MutexLock lock(&mutex_);
  const auto first = free_.begin() + size_class;
  const auto end =
      MayTakeLarger() ? free_.begin() + ClassOf(std::min(2 * bytes, kLargest)).index + 1 : first + 1;
  const auto found = std::find_if(first, end, [](const Block* head) { return head != nullptr; });
  if (found == end) return nullptr;
  Block* const block = *found;
  *found = block->next;
  return block;
}

// An attempt may begin at any step, so steps are counted from the first one seen.
bool HostCachingAllocator::MayTakeLarger() {
  const int64_t step = CurrentMemoryPlace().step;
  if (step == 0) return false;
  first_step_ = std::min(first_step_, step);
  return step >= first_step_ + kFillingSteps;
}

HostCachingAllocator::Block* HostCachingAllocator::AllocateFromSystem(int size_class, int64_t bytes) {
  void* memory = source_.allocate(kAlignment, sizeof(Block) + bytes);
  if (memory == nullptr) {
    EmptyCache();
    memory = source_.allocate(kAlignment, sizeof(Block) + bytes);
    MutexLock lock(&mutex_);
    ++counters_.retries;
  }
  if (memory == nullptr) return nullptr;
  MutexLock lock(&mutex_);
  ++counters_.device_mallocs;
  counters_.reserved_bytes += bytes;
  auto* const block = new (memory)
      Block{this, nullptr, bytes, size_class, /*live=*/false, nullptr, newest_, /*requested_bytes=*/0, {}};
  if (newest_ != nullptr) newest_->newer = block;
  newest_ = block;
  RecordEvent(Action::kSegmentAlloc, block);
  return block;
}

void HostCachingAllocator::HandOut(Block* block, int64_t requested_bytes) {
  MutexLock lock(&mutex_);
  ++counters_.allocations;
  counters_.allocated_bytes += SizeClassBytes(requested_bytes);  // The block may be larger.
  counters_.peak_bytes = std::max(counters_.peak_bytes, counters_.allocated_bytes);
  block->live = true;
  block->requested_bytes = requested_bytes;
  block->place = records_ ? CurrentMemoryPlace() : MemoryPlace();
  RecordEvent(Action::kAlloc, block);
}

void HostCachingAllocator::RecordEvent(Action action, Block* block) {
  if (!records_) return;
  if (static_cast<int64_t>(events_.size()) == MemorySnapshot::kMostEvents) events_.pop_front();
  events_.push_back({action, reinterpret_cast<uintptr_t>(block->data()), block->bytes, /*stream=*/0,
                     absl::GetCurrentTimeNanos() / 1000, CurrentMemoryPlace()});
}

void HostCachingAllocator::Free(void* data) {
  if (data == nullptr) return;
  Block* block = Block::Of(data);
  block->owner->ReturnToCache(block);
}

void HostCachingAllocator::ReturnToCache(Block* block) {
  MutexLock lock(&mutex_);
  counters_.allocated_bytes -= SizeClassBytes(block->requested_bytes);
  block->live = false;
  RecordEvent(Action::kFreeRequested, block);
  RecordEvent(Action::kFreeCompleted, block);
  block->next = free_[block->size_class];
  free_[block->size_class] = block;
}

MemoryCounters HostCachingAllocator::Read() const {
  MutexLock lock(&mutex_);
  return counters_;
}

void HostCachingAllocator::ResetPeak() {
  MutexLock lock(&mutex_);
  counters_.peak_bytes = counters_.allocated_bytes;
}

void HostCachingAllocator::EmptyCache() {
  MutexLock lock(&mutex_);
  for (Block*& head : free_) {
    while (head != nullptr) {
      Block* block = head;
      head = block->next;
      counters_.reserved_bytes -= block->bytes;
      ++counters_.device_frees;
      RecordEvent(Action::kSegmentFree, block);
      (block->newer != nullptr ? block->newer->older : newest_) = block->older;
      if (block->older != nullptr) block->older->newer = block->newer;
      source_.release(block);
    }
  }
}

void HostCachingAllocator::Record(bool on) {
  MutexLock lock(&mutex_);
  if (on) events_.clear();
  records_ = on;
}

MemorySnapshot HostCachingAllocator::Snapshot() const {
  MemorySnapshot snapshot;
  MutexLock lock(&mutex_);
  for (Block* block = newest_; block != nullptr; block = block->older) {
    MemorySnapshot::Segment& segment = snapshot.segments.emplace_back();
    segment.address = reinterpret_cast<uintptr_t>(block->data());
    segment.bytes = block->bytes;
    segment.is_large = block->bytes > kSmallLimit;
    segment.blocks.push_back({block->bytes, block->requested_bytes, block->live, block->live, block->place});
  }
  snapshot.events.assign(events_.begin(), events_.end());
  return snapshot;
}

HostCachingAllocator& ProcessHostAllocator() {
  static HostCachingAllocator* const instance = new HostCachingAllocator();
  return *instance;
}

void InstallHostCachingAllocator() {
  c10::SetAllocator(c10::DeviceType::CPU, &ProcessHostAllocator(), kPriority);
}

}  // namespace fsdpd
