// Records what the device's allocator does, and takes snapshots of it. Recording costs an allocation about a
// microsecond, and memory for MemorySnapshot::kMostEvents; without it a snapshot has no events and knows of
// no block who allocated it. CUDA: LibTorch's caching allocator. CPU: HostCachingAllocator, which must be
// installed. Of the process's ranks as threads the last word counts. Thread-safe.
#pragma once

#include "fsdp/memory/memory_snapshot.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// To begin anew forgets what was recorded.
void RecordMemory(DeviceKind device, bool on);

MemorySnapshot TakeMemorySnapshot(DeviceKind device, int device_index);

}  // namespace fsdpd
