#include "fsdp/profile/device_facts.h"

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {

absl::StatusOr<DeviceFacts> DescribeCudaDevice(int index) {
  FSDPD_RETURN_IF_ERROR(SetCudaDevice(index));
  cudaDeviceProp properties = {};
  size_t free_bytes = 0, all_bytes = 0;
  cudaError_t error = cudaGetDeviceProperties(&properties, index);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free_bytes, &all_bytes);
  if (error != cudaSuccess) return absl::FailedPreconditionError(cudaGetErrorString(error));
  return DeviceFacts{properties.name, static_cast<double>(free_bytes)};
}

}  // namespace fsdpd
