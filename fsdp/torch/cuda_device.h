// What this process can see of CUDA. The answers of a binary built without --config=cuda, and of one that
// finds no driver, are the same: no devices.
#pragma once

#include <absl/status/status.h>

namespace fsdpd {

int CudaDeviceCount();
inline bool CudaAvailable() { return CudaDeviceCount() > 0; }

// Before ranks become threads of one process, each with a GPU. FAILED_PRECONDITION where LibTorch's allocator
// is told to use expandable segments: with several GPUs in one process its first collective then never ends
// (LibTorch 2.11). Ranks in processes of their own may have them.
absl::Status CheckGpusMayShareProcess();

// Makes the device current on the calling thread. FAILED_PRECONDITION when there is no such device.
absl::Status SetCudaDevice(int index);

}  // namespace fsdpd
