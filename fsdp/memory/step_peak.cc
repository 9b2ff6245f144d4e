#include "fsdp/memory/step_peak.h"

#include <algorithm>

namespace fsdpd {

void StepPeak::Begin() {
  reset_peak_();
  const int64_t bytes = read_().peak_bytes;
  MutexLock lock(&mutex_);
  highest_ = held_.at_begin = bytes;
  instruction_.reset();
}

void StepPeak::Ended(int instruction) {
  const MemoryCounters counters = read_();
  if (by_instruction_) reset_peak_();
  MutexLock lock(&mutex_);
  if (counters.peak_bytes > highest_) {
    highest_ = counters.peak_bytes;
    instruction_ = instruction;
  }
  if (!by_instruction_) return;
  const auto index = static_cast<size_t>(instruction);
  std::vector<HeldBytes::Instruction>& held = held_.by_instruction;
  if (held.size() <= index) held.resize(index + 1);
  held[index] = {counters.peak_bytes, counters.allocated_bytes};
}

std::optional<int> StepPeak::instruction() const {
  MutexLock lock(&mutex_);
  return instruction_;
}

int64_t StepPeak::highest_bytes() const {
  const int64_t now = read_().peak_bytes;
  MutexLock lock(&mutex_);
  return std::max(highest_, now);
}

HeldBytes StepPeak::held() const {
  MutexLock lock(&mutex_);
  return held_;
}

}  // namespace fsdpd
