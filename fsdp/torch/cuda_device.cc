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

absl::Status CheckMultipliesFp8(int index) {
  int major = 0, minor = 0;
  FSDPD_RETURN_IF_ERROR(
      Checked(index, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index)));
  FSDPD_RETURN_IF_ERROR(
      Checked(index, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index)));
  if (major == 9 && minor == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("precision.compute: fp8 is not supported on CUDA device %d (compute capability %d.%d, "
                      "want 9.0: H100, H200)",
                      index, major, minor));
}

absl::Status SetCudaDevice(int index) { return Checked(index, cudaSetDevice(index)); }

}  // namespace fsdpd
