// CUDA part of host_arena.h: pins host memory.
// REQUIRES: a binary built with --config=cuda; any other aborts.
#pragma once

#include <absl/status/status.h>

#include <cstdint>

namespace fsdpd {

// Pins pages so that devices can copy to and from them asynchronously. RESOURCE_EXHAUSTED if the system
// refuses to pin so many.
absl::Status PinForCuda(void* begin, int64_t bytes);
void UnpinForCuda(void* begin);

}  // namespace fsdpd
