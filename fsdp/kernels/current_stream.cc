#include "fsdp/kernels/current_stream.h"

#include <c10/cuda/CUDAStream.h>

namespace fsdpd::kernels {

Stream CurrentStream(int device_index) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_index)).stream();
}

}  // namespace fsdpd::kernels
