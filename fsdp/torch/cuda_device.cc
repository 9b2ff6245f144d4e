#include "fsdp/torch/cuda_device.h"

#include <absl/strings/match.h>
#include <absl/strings/str_format.h>
#include <cuda_runtime_api.h>

#include <cstdlib>

#include "base/check.h"

namespace fsdpd {
namespace {

absl::Status Checked(int index, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  return absl::FailedPreconditionError(
      absl::StrFormat("CUDA device %d of %d: %s", index, CudaDeviceCount(), cudaGetErrorString(error)));
}

}  // namespace

int CudaDeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // Clears the error of a missing driver for the next CUDA call.
    return 0;
  }
  return count;
}

absl::Status CheckGpusMayShareProcess() {
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || !absl::StrContains(value, "expandable_segments:True")) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s=%s: expandable segments are not supported with several GPUs in one process; unset it", name,
        value));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CudaBusId(int index) {
  char id[32] = {};
  FSDPD_RETURN_IF_ERROR(Checked(index, cudaDeviceGetPCIBusId(id, sizeof id, index)));
  return id;
}

absl::StatusOr<std::string> CudaTarget(int index) {
  int major = 0, minor = 0;
  FSDPD_RETURN_IF_ERROR(
      Checked(index, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index)));
  FSDPD_RETURN_IF_ERROR(
      Checked(index, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index)));
  return absl::StrFormat("sm_%d%d", major, minor);
}

absl::Status CheckMultipliesFp8(int index) {
  FSDPD_ASSIGN_OR_RETURN(const std::string target, CudaTarget(index));
  if (target == "sm_90") return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("precision.compute: fp8 is not supported on CUDA device %d (compute capability %s, "
                      "want sm_90: H100, H200)",
                      index, target));
}

absl::Status SetCudaDevice(int index) { return Checked(index, cudaSetDevice(index)); }

absl::StatusOr<CudaDeviceFacts> DescribeCudaDevice(int index) {
  FSDPD_RETURN_IF_ERROR(SetCudaDevice(index));
  cudaDeviceProp properties = {};
  size_t free_bytes = 0, all_bytes = 0;
  cudaError_t error = cudaGetDeviceProperties(&properties, index);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free_bytes, &all_bytes);
  if (error != cudaSuccess) return absl::FailedPreconditionError(cudaGetErrorString(error));
  return CudaDeviceFacts{properties.name, static_cast<double>(free_bytes)};
}

absl::Status PinForCuda(void* begin, int64_t bytes) {
  const cudaError_t error = cudaHostRegister(begin, static_cast<size_t>(bytes), cudaHostRegisterPortable);
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // Clears the sticky error: it is returned here.
  return absl::ResourceExhaustedError(
      absl::StrFormat("pin %d bytes of host memory: %s", bytes, cudaGetErrorString(error)));
}

void UnpinForCuda(void* begin) {
  if (cudaHostUnregister(begin) != cudaSuccess) cudaGetLastError();
}

}  // namespace fsdpd
