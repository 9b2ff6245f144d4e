// CUDA devices visible to this process. Builds without --config=cuda behave like machines without a driver:
// no devices.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

namespace fsdpd {

int CudaDeviceCount();
inline bool CudaAvailable() { return CudaDeviceCount() > 0; }

// Call it before ranks become threads of one process with a GPU each. FAILED_PRECONDITION if LibTorch's
// allocator is configured for expandable segments: with several GPUs in one process, the first collective
// then hangs (LibTorch 2.11). Ranks in separate processes are not affected.
absl::Status CheckGpusMayShareProcess();

// PCI bus id in the kernel's format: "0000:18:00.0". FAILED_PRECONDITION if there is no such device.
absl::StatusOr<std::string> CudaBusId(int index);

// Compute capability as compilers name it: "sm_90".
absl::StatusOr<std::string> CudaTarget(int index);

// FAILED_PRECONDITION if its tensor cores do not support FP8 products with per-row scales.
absl::Status CheckMultipliesFp8(int index);

// Makes the device current on the calling thread. FAILED_PRECONDITION if there is no such device.
absl::Status SetCudaDevice(int index);

struct CudaDeviceFacts {
  std::string name;
  double memory_bytes = 0;  // Free at the time of the call: what a job can use.
};

// FAILED_PRECONDITION if there is no such device. Makes it current.
absl::StatusOr<CudaDeviceFacts> DescribeCudaDevice(int index);

// Pins pages of host memory so that devices can copy to and from them asynchronously. RESOURCE_EXHAUSTED if
// the system refuses to pin so many.
absl::Status PinForCuda(void* begin, int64_t bytes);
void UnpinForCuda(void* begin);

}  // namespace fsdpd
