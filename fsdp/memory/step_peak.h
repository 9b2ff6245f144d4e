// Peak of a step: the instruction in which allocated memory was highest, used to name a memory spike. The
// allocator only tracks a peak value; reading it after each instruction shows which one raised it. Resetting
// it after each instruction also yields the peak of each.
//
// Begin -> Ended after each instruction -> instruction, highest_bytes, held. Thread-safe: instructions of
// some lanes end on other threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "fsdp/memory/memory_snapshot.h"

namespace fsdpd {

// Allocated bytes during a step.
struct HeldBytes {
  struct Instruction {
    int64_t highest = 0;  // Peak since the previous instruction ended; 0: not measured.
    int64_t left = 0;     // When it ended.
  };
  int64_t at_begin = 0;
  std::vector<Instruction> by_instruction;  // The last execution of each.
};

class StepPeak {
 public:
  // `reset_peak` resets the peak that `read` returns to the current value. `by_instruction`: also reset after
  // each instruction; only if nothing else in the process reads the peak.
  StepPeak(std::function<MemoryCounters()> read, std::function<void()> reset_peak, bool by_instruction)
      : read_(std::move(read)), reset_peak_(std::move(reset_peak)), by_instruction_(by_instruction) {}

  void Begin();
  void Ended(int instruction);

  // nullopt: memory was never higher than at the start of the step.
  std::optional<int> instruction() const;
  // Peak of the step, from the allocator or from before a reset.
  int64_t highest_bytes() const;
  // Without `by_instruction` only at_begin is set.
  HeldBytes held() const;

 private:
  const std::function<MemoryCounters()> read_;
  const std::function<void()> reset_peak_;
  const bool by_instruction_;
  mutable Mutex mutex_;
  int64_t highest_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<int> instruction_ ABSL_GUARDED_BY(mutex_);
  HeldBytes held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
