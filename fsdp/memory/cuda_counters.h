// The part of counters.h that asks LibTorch's CUDA caching allocator.
// REQUIRES: a binary built with --config=cuda; any other aborts here.
#pragma once

#include "fsdp/memory/memory_counters.h"

namespace fsdpd {

MemoryCounters ReadCudaMemoryCounters(int device_index);
void ResetCudaPeakMemory(int device_index);

}  // namespace fsdpd
