// Work beside the lane that runs now, for as long as that lane computes something else: a stream that leaves
// it and comes back. On the CPU, where a collective blocks, it is put off until it is awaited; so what would
// be wrong beside a stream (reading a result early, writing to what is being sent) is wrong there too.
//
// Call order: Start as often as wanted, then Await; both while work of one lane runs. What is started runs in
// order. Tensors are made before Start and stay until Await: LibTorch's allocator knows nothing of the second
// stream. Thread safety: none.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <memory>
#include <optional>

namespace fsdpd {

class Aside {
 public:
  virtual ~Aside() = default;

  // After all that the lane has been given, beside what it is given from now on.
  virtual absl::Status Start(std::function<absl::Status()> work) = 0;

  // What the lane is given from now on comes after all that was started.
  virtual absl::Status Await() = 0;
};

// On the CUDA device with this index, or the CPU.
std::unique_ptr<Aside> MakeAside(std::optional<int> device_index);

// UNIMPLEMENTED builds without CUDA abort here; callers ask CudaAvailable() of cuda_device.h first.
std::unique_ptr<Aside> MakeStreamAside(int device_index);

}  // namespace fsdpd
