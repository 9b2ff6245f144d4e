#include "fsdp/memory/memory_place.h"

#include <utility>

namespace fsdpd {
namespace {

thread_local MemoryPlace current;

}  // namespace

MemoryPlace CurrentMemoryPlace() { return current; }

MemoryPlaceScope::MemoryPlaceScope(MemoryPlace place) : before_(std::exchange(current, place)) {}

MemoryPlaceScope::~MemoryPlaceScope() { current = before_; }

}  // namespace fsdpd
