// Implementation of cuda_device.h for builds without --config=cuda.
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

absl::Status BuiltForCpu() {
  return absl::FailedPreconditionError("this binary is built for CPU; build it with --config=cuda");
}

}  // namespace

int CudaDeviceCount() { return 0; }

absl::Status CheckGpusMayShareProcess() { return absl::OkStatus(); }

absl::StatusOr<std::string> CudaBusId(int /*index*/) { return BuiltForCpu(); }

absl::StatusOr<std::string> CudaTarget(int /*index*/) { return BuiltForCpu(); }

absl::Status CheckMultipliesFp8(int /*index*/) { return BuiltForCpu(); }

absl::Status SetCudaDevice(int /*index*/) { return BuiltForCpu(); }

absl::StatusOr<CudaDeviceFacts> DescribeCudaDevice(int /*index*/) { return BuiltForCpu(); }

absl::Status PinForCuda(void* /*begin*/, int64_t /*bytes*/) { return BuiltForCpu(); }

void UnpinForCuda(void* /*begin*/) {}

}  // namespace fsdpd
