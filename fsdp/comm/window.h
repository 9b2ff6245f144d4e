// Device memory that the other GPUs of the host can reach, from NCCL's allocator: registered with a
// communicator (Communicator::Register), its collectives go by copy engines and take no multiprocessor from
// the products beside them: those of 12 layers of the 8B shape take 244 ms of a step, and 254 beside NCCL's
// kernels (2 H200).
//
// A copy engine's collective waits for its peers by operations of the stream, which no abort ends: a rank
// whose peer is gone gives its lanes a moment (Lane::Drain) and leaves by _exit.
//
// LibTorch's allocator does not see this memory; Arena counts it.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

namespace fsdpd {

// RESOURCE_EXHAUSTED with the bytes asked for when the device has not enough; UNIMPLEMENTED in a binary built
// without --config=cuda.
absl::StatusOr<std::shared_ptr<void>> MakeWindow(int64_t bytes, int device_index);

}  // namespace fsdpd
