#include "fsdp/memory/memory_place.h"

#include <atomic>
#include <utility>

namespace fsdpd {
namespace {

thread_local MemoryPlace current;
std::atomic<MemoryPlace> of_others{MemoryPlace()};
static_assert(std::atomic<MemoryPlace>::is_always_lock_free, "it is read with each allocation");

}  // namespace

MemoryPlace CurrentMemoryPlace() { return current; }

MemoryPlace MemoryPlaceWithOthers() { return current == MemoryPlace() ? of_others.load() : current; }

MemoryPlaceScope::MemoryPlaceScope(MemoryPlace place, bool with_others)
    : before_(std::exchange(current, place)), with_others_(with_others) {
  if (with_others_) of_others = place;
}

MemoryPlaceScope::~MemoryPlaceScope() {
  current = before_;
  if (with_others_) of_others = before_;
}

}  // namespace fsdpd
