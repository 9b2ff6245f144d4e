// The part of host_arena.h that asks CUDA.
// REQUIRES: a binary built with --config=cuda; any other aborts here.
#pragma once

#include <absl/status/status.h>

#include <cstdint>

namespace fsdpd {

// Pages that a device of this process may copy to while other work runs. RESOURCE_EXHAUSTED where the system
// does not let so many be pinned.
absl::Status PinForCuda(void* begin, int64_t bytes);
void UnpinForCuda(void* begin);

}  // namespace fsdpd
