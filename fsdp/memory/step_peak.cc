#include "fsdp/memory/step_peak.h"

namespace fsdpd {

void StepPeak::Begin() {
  const int64_t bytes = read_bytes_();
  MutexLock lock(&mutex_);
  highest_ = bytes;
  instruction_.reset();
}

void StepPeak::Ended(int instruction) {
  const int64_t bytes = read_bytes_();
  MutexLock lock(&mutex_);
  if (bytes <= highest_) return;
  highest_ = bytes;
  instruction_ = instruction;
}

std::optional<int> StepPeak::instruction() const {
  MutexLock lock(&mutex_);
  return instruction_;
}

}  // namespace fsdpd
