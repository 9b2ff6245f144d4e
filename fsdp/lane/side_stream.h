// Aside: runs work concurrently with later work of the current lane and joins it again, like a forked CUDA
// stream. On CPU, where a collective blocks, the work is deferred to Await; so errors that overlap would
// cause (reading a result early, writing to a buffer that is being sent) show on CPU too.
//
// Call order: Start any number of times, then Await; both inside work of one lane. Started work runs in
// order. Tensors must be allocated before Start and live until Await, since LibTorch's allocator does not
// know of the second stream. Not thread-safe.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <memory>
#include <optional>

namespace fsdpd {

class SideStream {
 public:
  virtual ~SideStream() = default;

  // Runs `work` after all work submitted to the lane so far, concurrently with later work.
  virtual absl::Status Start(std::function<absl::Status()> work) = 0;

  // Makes later work of the lane wait for everything that was started.
  virtual absl::Status Await() = 0;
};

// On the CUDA device with this index; nullopt: on the CPU.
std::unique_ptr<SideStream> MakeSideStream(std::optional<int> device_index);

// Aborts in builds without CUDA; check CudaAvailable() (cuda_device.h) first.
std::unique_ptr<SideStream> MakeCudaSideStream(int device_index);

}  // namespace fsdpd
