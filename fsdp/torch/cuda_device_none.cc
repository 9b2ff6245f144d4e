// cuda_device.h in a binary built without --config=cuda.
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {

int CudaDeviceCount() { return 0; }

absl::Status CheckGpusMayShareProcess() { return absl::OkStatus(); }

absl::Status SetCudaDevice(int /*index*/) {
  return absl::FailedPreconditionError("this binary is built for CPU; build it with --config=cuda");
}

}  // namespace fsdpd
