#include "fsdp/comm/window.h"

#include <absl/strings/str_format.h>
#include <nccl.h>

#include "base/check.h"
#include "fsdp/memory/device_calls.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {

absl::StatusOr<std::shared_ptr<void>> MakeWindow(int64_t bytes, int device_index) {
  FSDPD_RETURN_IF_ERROR(SetCudaDevice(device_index));
  void* memory = nullptr;
  const ncclResult_t result = ncclMemAlloc(&memory, bytes);
  if (result != ncclSuccess) {
    return absl::ResourceExhaustedError(absl::StrFormat("allocate %d bytes for collectives on device %d: %s",
                                                        bytes, device_index, ncclGetErrorString(result)));
  }
  CountDeviceMalloc();
  return std::shared_ptr<void>(memory, [](void* base) {
    if (ncclMemFree(base) == ncclSuccess) CountDeviceFree();
  });
}

}  // namespace fsdpd
