#include "fsdp/memory/cuda_pin.h"

#include <absl/strings/str_format.h>
#include <cuda_runtime_api.h>

namespace fsdpd {

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
