// In which instruction of a step the device's allocated memory was highest: what a spike is named after. The
// allocator keeps the height; who asks it after each instruction knows where it came about. Where it begins
// anew after every one, the height of each is known, too.
//
// Begin -> Ended after each instruction -> instruction, highest_bytes, held. Thread-safe: instructions of
// some lanes end on threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "fsdp/memory/memory_counters.h"

namespace fsdpd {

// What the allocator held in a step.
struct HeldBytes {
  struct Instruction {
    int64_t highest = 0;  // The most since the one before had ended; 0: it was not asked.
    int64_t left = 0;     // When it had ended.
  };
  int64_t at_begin = 0;
  std::vector<Instruction> by_instruction;  // Each as it ended last.
};

class StepPeak {
 public:
  // `begin_anew`: the height that `read` tells is that of now, from then on. `by_instruction`: it does so
  // after each. Not where others of the process look at that height.
  StepPeak(std::function<MemoryCounters()> read, std::function<void()> begin_anew, bool by_instruction)
      : read_(std::move(read)), begin_anew_(std::move(begin_anew)), by_instruction_(by_instruction) {}

  void Begin();
  void Ended(int instruction);

  // Empty: it was never higher than when the step began.
  std::optional<int> instruction() const;
  // Of the step: as the allocator tells it now, or as it did before it began anew.
  int64_t highest_bytes() const;
  // Of instructions nothing unless `by_instruction`.
  HeldBytes held() const;

 private:
  const std::function<MemoryCounters()> read_;
  const std::function<void()> begin_anew_;
  const bool by_instruction_;
  mutable Mutex mutex_;
  int64_t highest_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<int> instruction_ ABSL_GUARDED_BY(mutex_);
  HeldBytes held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
