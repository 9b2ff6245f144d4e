// MakeStreamLane in a binary built without --config=cuda.
#include "base/check.h"
#include "fsdp/lane/lane.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {

std::unique_ptr<Lane> MakeStreamLane(int device_index, bool high_priority) {
  FSDPD_CHECK(CudaAvailable());
  return nullptr;
}

}  // namespace fsdpd
