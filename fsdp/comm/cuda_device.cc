#include "fsdp/comm/cuda_device.h"

#include <absl/strings/str_format.h>
#include <cuda_runtime_api.h>

namespace fsdpd {

int CudaDeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // No driver is an answer, not an error for the next call to find.
    return 0;
  }
  return count;
}

absl::Status SetCudaDevice(int index) {
  const cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  return absl::FailedPreconditionError(
      absl::StrFormat("CUDA device %d of %d: %s", index, CudaDeviceCount(), cudaGetErrorString(error)));
}

}  // namespace fsdpd
