// Recorder of allocator events and snapshots. Recording costs about a microsecond per allocation, and memory
// for MemorySnapshot::kMostEvents; without it a snapshot has no events, and its blocks no place. CUDA:
// LibTorch's caching allocator. CPU: HostCachingAllocator, which must be installed. The recording state is
// shared by all ranks of a process; the last call wins. Thread-safe.
#pragma once

#include "fsdp/memory/memory_snapshot.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// Starting again discards earlier events.
void RecordMemory(DeviceKind device, bool on);

MemorySnapshot TakeMemorySnapshot(DeviceKind device, int device_index);

}  // namespace fsdpd
