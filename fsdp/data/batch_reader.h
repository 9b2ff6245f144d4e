// Prefetching batch reader: reads a rank's batches ahead of its steps, on its own thread, into preallocated
// host memory that is pinned if the device is CUDA. A pause of the file system delays steps only once the
// prefetched batches are used up. The time a step waited is returned with its batches.
//
// Steps are read in order, from first to last. An error is returned for the step it belongs to, after all
// earlier steps were returned, and by every later Next.
//
// Call order: Make, which starts reading; Next for each step in order; destroy a StepBatches when nothing
// reads it any more, since its memory is then reused. Thread safety: one thread calls Next; a StepBatches may
// be destroyed on any thread, and may outlive the reader.
//
// A read that never returns, such as from an unreachable file server, cannot be interrupted. A reader that is
// destroyed during one detaches its thread after kPatience; the thread keeps its buffers alive and ends after
// that read.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "fsdp/data/batches.h"

namespace fsdpd {

struct BatchReaderOptions {
  // Reads one micro-batch of a step into `to`. Called on the reader's thread, which may outlive the reader.
  std::function<absl::Status(int64_t step, int64_t micro_batch, Batch* to)> read;
  int64_t first = 1;  // First step.
  int64_t last = 0;   // Last step; below `first`: nothing is read.
  int64_t micro_batches = 1;
  int64_t rows = 0;  // Per micro-batch.
  int64_t sequence = 0;
  bool documents = false;  // Whether samples consist of packed documents.
  int64_t held = 1;        // Maximum number of StepBatches that the user holds at a time.
  DeviceKind device = DeviceKind::kCpu;
  Clock* clock = Clock::Real();  // Measures how long a step waited. Must outlive the reader.
};

class StepBatches;

class BatchReader {
 public:
  // Maximum number of prefetched steps: hides a pause of eight steps.
  static constexpr int64_t kMostAhead = 8;
  // Memory limit for prefetched steps; at least one is always prefetched. Steps with so many tokens take
  // long, and a node may have many ranks.
  static constexpr int64_t kAheadBytes = int64_t{64} << 20;

  static constexpr absl::Duration kPatience = absl::Milliseconds(250);

  // Errors: those of host_arena.h.
  static absl::StatusOr<std::unique_ptr<BatchReader>> Make(BatchReaderOptions options);
  ~BatchReader();

  // While waiting, polls `interrupted` (at least once, without holding a lock) and returns its error; Next
  // may then be called again. REQUIRES: `step` follows that of the last call (or is `first`) and is at most
  // `last`; fewer than `held` StepBatches exist.
  absl::StatusOr<StepBatches> Next(int64_t step, const std::function<absl::Status()>& interrupted);

 private:
  struct Shelf;

  explicit BatchReader(std::shared_ptr<Shelf> shelf);

  const std::shared_ptr<Shelf> shelf_;
  int64_t next_;
  std::thread thread_;
};

// The batches of a step, by micro-batch.
class StepBatches {
 public:
  StepBatches() = default;  // Empty.

  const std::vector<Batch>& batches() const { return *batches_; }  // REQUIRES: not empty or moved from.
  double waited_seconds() const { return waited_seconds_; }

 private:
  friend class BatchReader;
  using Return = std::function<void(std::vector<Batch>*)>;  // Gives the memory back to the reader.
  StepBatches(std::unique_ptr<std::vector<Batch>, Return> batches, double waited_seconds)
      : batches_(std::move(batches)), waited_seconds_(waited_seconds) {}

  std::unique_ptr<std::vector<Batch>, Return> batches_;
  double waited_seconds_ = 0;
};

}  // namespace fsdpd
