// A word of host memory that streams of a device store to, in their order and without the host: by the
// driver's write-value, which a stream's front end does by itself, so that no kernel is launched and it works
// while all multiprocessors are taken. It can be captured into a graph.
//
// The store is fenced: what the stream wrote before is visible before it. Nobody needs that here, but the
// driver has no write-value without it any more (flags of its second version).
//
// The word's memory stays registered with the device while this lives. Built with --config=cuda alone.
// Thread safety: none. Errors: UNIMPLEMENTED where device or driver cannot, INTERNAL by CUDA's word.
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
  // `word`: at the head of `bytes` of page-aligned memory of its own, which outlives this. Of the current
  // device.
  static absl::StatusOr<std::unique_ptr<StreamWord>> Make(std::atomic<uint64_t>* word, int64_t bytes);
  ~StreamWord();
  StreamWord(const StreamWord&) = delete;
  StreamWord& operator=(const StreamWord&) = delete;

  // Enqueues the store.
  absl::Status Store(uint64_t value, cudaStream_t stream);

  // Streams may store to it for as long as the process lives: its memory stays registered.
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
