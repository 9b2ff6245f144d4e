// Word of host memory that CUDA streams store to in stream order, without the host. Uses the driver's
// write-value operation, which the stream's front end executes: it launches no kernel, works while all
// multiprocessors are busy, and can be captured into a graph.
//
// The store is fenced: earlier writes of the stream are visible before it. This is not needed here, but
// version 2 of the driver's API has no unfenced variant.
//
// The memory stays registered with the device while this object lives. Only built with --config=cuda. Thread
// safety: none. Errors: UNIMPLEMENTED if the device or driver lacks the operation, INTERNAL for CUDA errors.
#pragma once

#include <absl/status/statusor.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace fsdpd {

class StreamWord {
 public:
  // `word` starts `bytes` of page-aligned memory that nothing else uses and that outlives this object. For
  // the current device.
  static absl::StatusOr<std::unique_ptr<StreamWord>> Make(std::atomic<uint64_t>* word, int64_t bytes);
  ~StreamWord();
  StreamWord(const StreamWord&) = delete;
  StreamWord& operator=(const StreamWord&) = delete;

  // Enqueues the store.
  absl::Status Store(uint64_t value, cudaStream_t stream);

  // Leaves the memory registered: streams may store to it until the process exits.
  void Abandon() { abandoned_ = true; }

 private:
  using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned int);

  explicit StreamWord(std::atomic<uint64_t>* word) : word_(word) {}

  std::atomic<uint64_t>* const word_;
  WriteValue write_value_ = nullptr;
  CUdeviceptr address_ = 0;
  bool abandoned_ = false;
};

}  // namespace fsdpd
