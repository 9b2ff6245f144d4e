// What this process can see of CUDA. The answers of a binary built without --config=cuda, and of one that
// finds no driver, are the same: no devices.
#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace fsdpd {

int CudaDeviceCount();
inline bool CudaAvailable() { return CudaDeviceCount() > 0; }

// Before ranks become threads of one process, each with a GPU. FAILED_PRECONDITION where LibTorch's allocator
// is told to use expandable segments: with several GPUs in one process its first collective then never ends
// (LibTorch 2.11). Ranks in processes of their own may have them.
absl::Status CheckGpusMayShareProcess();

// "0000:18:00.0", as the kernel names the slot that it is in. FAILED_PRECONDITION when there is no such
// device.
absl::StatusOr<std::string> CudaBusId(int index);

// FAILED_PRECONDITION where its tensor cores do not multiply FP8 with a scale a row.
absl::Status CheckMultipliesFp8(int index);

// Makes the device current on the calling thread. FAILED_PRECONDITION when there is no such device.
absl::Status SetCudaDevice(int index);

}  // namespace fsdpd
