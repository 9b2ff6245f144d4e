// What this process can see of CUDA. The answers of a binary built without --config=cuda, and of one that
// finds no driver, are the same: no devices.
#pragma once

#include <absl/status/status.h>

namespace fsdpd {

int CudaDeviceCount();
inline bool CudaAvailable() { return CudaDeviceCount() > 0; }

// Makes the device current on the calling thread. FAILED_PRECONDITION when there is no such device.
absl::Status SetCudaDevice(int index);

}  // namespace fsdpd
