#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

#include "base/check.h"
#include "fsdp/lane/side_stream.h"
#include "fsdp/lane/stream_lane.h"

namespace fsdpd {
namespace {

// Two events suffice: each is waited for before it is recorded again. If the lane is being captured into a
// graph, so is this stream.
class CudaSideStream : public SideStream {
 public:
  explicit CudaSideStream(int device_index)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true,
                                             static_cast<c10::DeviceIndex>(device_index))) {
    const c10::cuda::CUDAGuard guard(stream_.device_index());
    for (cudaEvent_t* event : {&forked_, &joined_}) {
      FSDPD_CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming) == cudaSuccess);
    }
  }
  ~CudaSideStream() override {
    cudaEventDestroy(forked_);
    cudaEventDestroy(joined_);
  }

  absl::Status Start(std::function<absl::Status()> work) override {
    FSDPD_RETURN_IF_ERROR(Order(forked_, Lane(), stream_.stream()));
    const c10::cuda::CUDAStreamGuard guard(stream_);
    return work();
  }

  absl::Status Await() override { return Order(joined_, stream_.stream(), Lane()); }

 private:
  cudaStream_t Lane() const { return c10::cuda::getCurrentCUDAStream(stream_.device_index()).stream(); }

  static absl::Status Order(cudaEvent_t event, cudaStream_t first, cudaStream_t second) {
    FSDPD_RETURN_IF_ERROR(StatusOfCuda(cudaEventRecord(event, first), "cudaEventRecord"));
    return StatusOfCuda(cudaStreamWaitEvent(second, event), "cudaStreamWaitEvent");
  }

  const c10::cuda::CUDAStream stream_;
  cudaEvent_t forked_ = nullptr, joined_ = nullptr;
};

}  // namespace

std::unique_ptr<SideStream> MakeCudaSideStream(int device_index) {
  return std::make_unique<CudaSideStream>(device_index);
}

}  // namespace fsdpd
