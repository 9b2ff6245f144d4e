// How often anybody in this process asked a GPU for memory, or gave some back: LibTorch's allocator, a
// library that it uses, or we. Counted where they call CUDA's runtime, whose functions the program that links
// this stands in front of, for every shared library of the process; and for cuMemCreate, which is had of the
// runtime by name, where that name is asked for. A library that has a runtime of its own inside (NCCL's, for
// one) is not seen: fsdp/comm/window.cc, which has memory of NCCL's, says so itself.
//
// Thread-safe.
#pragma once

#include <cstdint>

namespace fsdpd {

struct DeviceCalls {
  int64_t mallocs = 0;  // That succeeded, since the process started.
  int64_t frees = 0;
};

// Of what was asked for while this device was current. REQUIRES: 0 <= device_index.
DeviceCalls ReadDeviceCalls(int device_index);

// Of memory that came otherwise, on the current device.
void CountDeviceMalloc();
void CountDeviceFree();

}  // namespace fsdpd
