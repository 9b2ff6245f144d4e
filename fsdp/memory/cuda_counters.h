// CUDA part of counters.h, for LibTorch's CUDA caching allocator.
// REQUIRES: a binary built with --config=cuda; any other aborts.
#pragma once

#include "fsdp/memory/memory_counters.h"

namespace fsdpd {

MemoryCounters ReadCudaMemoryCounters(int device_index);
void ResetCudaPeakMemory(int device_index);

}  // namespace fsdpd
