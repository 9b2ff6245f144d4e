// Memory place: the step and instruction that a thread is executing, to attribute its allocations.
// Thread-safe: each thread has its own. Autograd runs a device's backward on a separate thread, which takes
// the place of the thread that waits for it.
#pragma once

#include <cstdint>

namespace fsdpd {

struct alignas(8) MemoryPlace {  // 8 bytes, so that it can be read atomically.
  static constexpr int32_t kNowhere = -1;
  static constexpr int32_t kEvaluation = -2;

  int32_t step = 0;                // 0: before the first.
  int32_t instruction = kNowhere;  // Index in the training program, or one of the above.

  friend bool operator<(const MemoryPlace& a, const MemoryPlace& b) {
    return a.step != b.step ? a.step < b.step : a.instruction < b.instruction;
  }
  friend bool operator==(const MemoryPlace& a, const MemoryPlace& b) {
    return a.step == b.step && a.instruction == b.instruction;
  }
};

MemoryPlace CurrentMemoryPlace();

// The place of this thread or, if it has none, of the newest scope with `with_others`. If ranks are threads
// of one process, that may be another rank's.
MemoryPlace MemoryPlaceWithOthers();

// Sets the place of this thread during its lifetime; `with_others`: also of threads without a place.
class MemoryPlaceScope {
 public:
  explicit MemoryPlaceScope(MemoryPlace place, bool with_others = false);
  ~MemoryPlaceScope();
  MemoryPlaceScope(const MemoryPlaceScope&) = delete;
  MemoryPlaceScope& operator=(const MemoryPlaceScope&) = delete;

 private:
  const MemoryPlace before_;
  const bool with_others_;
};

}  // namespace fsdpd
