#include "fsdp/memory/memory_place.h"

#include <atomic>
#include <utility>

namespace fsdpd {
namespace {

thread_local MemoryPlace current;
std::atomic<MemoryPlace> shared_place{MemoryPlace()};
static_assert(std::atomic<MemoryPlace>::is_always_lock_free, "it is read with each allocation");

}  // namespace

MemoryPlace CurrentMemoryPlace() { return current; }

MemoryPlace MemoryPlaceWithOthers() { return current == MemoryPlace() ? shared_place.load() : current; }

MemoryPlaceScope::MemoryPlaceScope(MemoryPlace place, bool with_others)
    : before_(std::exchange(current, place)), with_others_(with_others) {
  if (with_others_) shared_place = place;
}

MemoryPlaceScope::~MemoryPlaceScope() {
  current = before_;
  if (with_others_) shared_place = before_;
}

}  // namespace fsdpd
