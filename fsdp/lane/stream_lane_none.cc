// MakeStreamLane, MakeCudaSideStream and RecordGraph in a binary built without --config=cuda.
#include "base/check.h"
#include "fsdp/lane/lane.h"
#include "fsdp/lane/lane_graph.h"
#include "fsdp/lane/side_stream.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {

std::unique_ptr<Lane> MakeStreamLane(int device_index, bool high_priority) {
  FSDPD_CHECK(CudaAvailable());
  return nullptr;
}

std::unique_ptr<SideStream> MakeCudaSideStream(int device_index) {
  FSDPD_CHECK(CudaAvailable());
  return nullptr;
}

absl::StatusOr<std::unique_ptr<LaneGraph>> RecordGraph(const std::vector<Lane*>& lanes,
                                                       const std::function<absl::Status()>& submit) {
  return absl::UnimplementedError("CUDA graphs need lanes that are CUDA streams");
}

}  // namespace fsdpd
