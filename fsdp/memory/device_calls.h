// Counters of device memory calls in this process: how often LibTorch's allocator, a library or our code
// allocated or freed GPU memory. Implemented by interposing the CUDA runtime's functions for all shared
// libraries of the process, and cuMemCreate when it is looked up by name through the runtime. A library with
// its own copy of the runtime (such as NCCL) is not seen: fsdp/comm/window.cc counts its NCCL memory itself.
//
// Thread-safe.
#pragma once

#include <cstdint>

namespace fsdpd {

struct DeviceCalls {
  int64_t mallocs = 0;  // Successful, since process start.
  int64_t frees = 0;
};

// Calls made while this device was current. REQUIRES: 0 <= device_index.
DeviceCalls ReadDeviceCalls(int device_index);

// Counts memory that was obtained in another way, on the current device.
void CountDeviceMalloc();
void CountDeviceFree();

}  // namespace fsdpd
