// In which instruction of a step the device's allocated memory was highest: what a spike is named after. The
// allocator keeps the height; who asks it after each instruction knows where it came about.
//
// Begin -> Ended after each instruction -> instruction. Thread-safe: instructions of some lanes end on
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "base/mutex.h"

namespace fsdpd {

class StepPeak {
 public:
  // `read_bytes`: the highest so far since it was told to begin anew.
  explicit StepPeak(std::function<int64_t()> read_bytes) : read_bytes_(std::move(read_bytes)) {}

  void Begin();
  void Ended(int instruction);

  // Empty: it was never higher than when the step began.
  std::optional<int> instruction() const;

 private:
  const std::function<int64_t()> read_bytes_;
  mutable Mutex mutex_;
  int64_t highest_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<int> instruction_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
