// Who allocates: the instruction that a thread is in, for those who record allocations. Thread-safe: each
// thread has its own. Autograd runs a device's backward on a thread that it has for it: such a thread is
// where the one is that waits for it.
#pragma once

#include <cstdint>

namespace fsdpd {

struct alignas(8) MemoryPlace {  // As one number, for who reads it at once.
  static constexpr int32_t kNowhere = -1;
  static constexpr int32_t kEvaluation = -2;

  int32_t step = 0;                // 0: before the first.
  int32_t instruction = kNowhere;  // Of the training program, or one of the above.

  friend bool operator<(const MemoryPlace& a, const MemoryPlace& b) {
    return a.step != b.step ? a.step < b.step : a.instruction < b.instruction;
  }
  friend bool operator==(const MemoryPlace& a, const MemoryPlace& b) {
    return a.step == b.step && a.instruction == b.instruction;
  }
};

MemoryPlace CurrentMemoryPlace();

// The same, of a thread that has none that of the newest scope `with_others`. Where one process is several
// ranks it may be another one's.
MemoryPlace MemoryPlaceWithOthers();

// The thread is there while it lives, and `with_others` those without a place.
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
