// CUDA part of recorder.h, for LibTorch's CUDA caching allocator.
// REQUIRES: a binary built with --config=cuda; any other aborts.
#pragma once

#include "fsdp/memory/memory_snapshot.h"

namespace fsdpd {

void RecordCudaMemory(bool on);
MemorySnapshot TakeCudaMemorySnapshot(int device_index);

}  // namespace fsdpd
