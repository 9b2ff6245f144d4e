// Window: device memory that other GPUs of the host can access, from NCCL's allocator. If it is registered
// with a communicator (Communicator::Register), collectives use copy engines and take no multiprocessors from
// concurrent matrix products: 12 layers of the 8B model take 244 ms per step, instead of 254 ms next to
// NCCL's kernels (2 H200).
//
// A copy-engine collective waits for its peers with stream operations, which no abort ends: a rank whose peer
// is gone drains its lanes for at most a quarter of a second (Lane::Drain) and leaves with _exit.
//
// LibTorch's allocator does not count this memory; Arena does.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

namespace fsdpd {

// RESOURCE_EXHAUSTED, with the requested size, if the device has too little memory; UNIMPLEMENTED in a binary
// built without --config=cuda.
absl::StatusOr<std::shared_ptr<void>> MakeWindow(int64_t bytes, int device_index);

}  // namespace fsdpd
