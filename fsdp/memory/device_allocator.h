// A device's allocator: counters, and a recorder of events and snapshots. CUDA: LibTorch's caching allocator,
// with calls to the device from device_calls.h. CPU: HostCachingAllocator (host_caching_allocator.h), with
// the same meaning; all zero unless it is installed. Counted sizes are those of rounded-up blocks.
//
// Recording costs about a microsecond per allocation, and memory for MemorySnapshot::kMostEvents; without it
// a snapshot has no events, and its blocks no place. The recording state is shared by all ranks of a process;
// the last call wins.
//
// Thread-safe. REQUIRES for kCuda: a binary built with --config=cuda; any other aborts.
#pragma once

#include "fsdp/memory/memory_snapshot.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

MemoryCounters ReadMemoryCounters(DeviceKind device, int device_index);
void ResetPeakMemory(DeviceKind device, int device_index);

// Starting again discards earlier events.
void RecordMemory(DeviceKind device, bool on);
MemorySnapshot TakeMemorySnapshot(DeviceKind device, int device_index);

}  // namespace fsdpd
