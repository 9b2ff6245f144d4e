// Reads a rank's batches before its steps ask for them, on a thread of its own and into host memory that is
// there from the start, pinned where the device is CUDA: a share that pauses holds no step up for as long as
// what was read ahead lasts. How long a step did wait goes with its batches.
//
// Steps are read in order, first to last and none beyond. An error comes to the step that it belongs to,
// after all before it were handed out, and to every later Next.
//
// Call order: Make, which begins to read; Next for each step in order; a StepBatches goes when nothing reads
// it any more, and its memory is written anew. Thread safety: one thread calls Next; a StepBatches may go on
// any, and may outlive the reader.
//
// A read that does not end, of a share that is gone, ends with nothing that this process can do. So a reader
// that is destroyed meanwhile leaves its thread to itself after kPatience: it keeps what it writes to alive,
// and is over with that read.
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
  // Of step and micro-batch into `to`. On the reader's thread, which may outlive the reader.
  std::function<absl::Status(int64_t step, int64_t micro_batch, Batch* to)> read;
  int64_t first = 1;  // Step.
  int64_t last = 0;   // Below `first`: none is read.
  int64_t micro_batches = 1;
  int64_t rows = 0;  // Of a micro-batch.
  int64_t sequence = 0;
  bool documents = false;  // Samples are made of documents.
  int64_t held = 1;        // StepBatches that its user has at a time, at most.
  DeviceKind device = DeviceKind::kCpu;
  Clock* clock = Clock::Real();  // For how long a step waited. Outlives the reader.
};

class StepBatches;

class BatchReader {
 public:
  // At most so many steps are there that nobody has asked for: a pause of eight steps' time passes unseen.
  static constexpr int64_t kMostAhead = 8;
  // ... and no more than fit here, but for one: steps of so many tokens take long, and a node has many ranks.
  static constexpr int64_t kAheadBytes = int64_t{64} << 20;

  static constexpr absl::Duration kPatience = absl::Milliseconds(250);

  // Errors: host_arena.h's.
  static absl::StatusOr<std::unique_ptr<BatchReader>> Make(BatchReaderOptions options);
  ~BatchReader();

  // While it has to wait, `interrupted` is asked again and again, at least once and without a lock, and an
  // error from it ends the wait: Next may then be called again. REQUIRES: `step` is the one after the last
  // call's, or `first`, and not beyond `last`; fewer than `held` StepBatches are there.
  absl::StatusOr<StepBatches> Next(int64_t step, const std::function<absl::Status()>& interrupted);

 private:
  friend class StepBatches;
  struct Shelf;

  explicit BatchReader(std::shared_ptr<Shelf> shelf);

  const std::shared_ptr<Shelf> shelf_;
  int64_t next_;
  std::thread thread_;
};

// A step's batches, by micro-batch.
class StepBatches {
 public:
  StepBatches() = default;  // None.
  StepBatches(StepBatches&& other) noexcept { *this = std::move(other); }
  StepBatches& operator=(StepBatches&& other) noexcept;
  ~StepBatches();

  const std::vector<Batch>& batches() const;  // REQUIRES: not moved from.
  double waited_seconds() const { return waited_seconds_; }

 private:
  friend class BatchReader;
  StepBatches(std::shared_ptr<BatchReader::Shelf> shelf, size_t place, double waited_seconds)
      : shelf_(std::move(shelf)), place_(place), waited_seconds_(waited_seconds) {}

  std::shared_ptr<BatchReader::Shelf> shelf_;
  size_t place_ = 0;
  double waited_seconds_ = 0;
};

}  // namespace fsdpd
