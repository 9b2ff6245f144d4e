#include "fsdp/data/batch_reader.h"

#include <ATen/ops/from_blob.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "fsdp/memory/host_arena.h"

namespace fsdpd {
namespace {

// Interval at which a rank that waits for data polls for its stop signal.
constexpr auto kAskEvery = std::chrono::milliseconds(20);

// Logs a longer wait. No lane is active then, so nothing else would show what the job waits for.
constexpr absl::Duration kTellAfter = absl::Seconds(10);

// Size of a micro-batch's tokens, targets or positions.
int64_t PartBytes(const BatchReaderOptions& options) {
  return options.rows * options.sequence * static_cast<int64_t>(sizeof(int64_t));
}

// Bounds need half a part plus one element.
int64_t PartsOf(const BatchReaderOptions& options) { return options.documents ? 4 : 2; }

int64_t StepBytes(const BatchReaderOptions& options) {
  return PartsOf(options) * PartBytes(options) * options.micro_batches;
}

int64_t PlacesFor(const BatchReaderOptions& options) {
  const int64_t fit = BatchReader::kAheadBytes / StepBytes(options);
  const int64_t ahead = std::clamp(fit, int64_t{1}, BatchReader::kMostAhead);
  return std::min(options.held + ahead, options.last - options.first + 1);
}

// The buffers of each step's batches.
std::vector<std::vector<Batch>> PlacesIn(const HostArena& arena, const BatchReaderOptions& options) {
  std::vector<std::vector<Batch>> places;
  std::byte* next = arena.data();
  const std::vector<int64_t> shape = {options.rows, options.sequence};
  const auto part = [&](at::IntArrayRef sizes, at::ScalarType type) {
    const at::Tensor tensor = at::from_blob(next, sizes, type);
    FSDPD_CHECK(static_cast<int64_t>(tensor.nbytes()) <= PartBytes(options));
    next += PartBytes(options);
    return tensor;
  };
  while (next < arena.data() + arena.bytes()) {
    std::vector<Batch>& batches = places.emplace_back();
    for (int64_t m = 0; m < options.micro_batches; ++m) {
      Batch& batch = batches.emplace_back();
      batch.tokens = part(shape, at::kLong);
      batch.targets = part(shape, at::kLong);
      if (!options.documents) continue;
      batch.positions = part(shape, at::kLong);
      batch.documents.bounds = part({MaxBounds(options.rows, options.sequence)}, at::kInt);
    }
  }
  return places;
}

}  // namespace

// State shared between the reader's thread and its user.
struct BatchReader::Shelf {
  Shelf(BatchReaderOptions given, std::unique_ptr<HostArena> memory)
      : options(std::move(given)), arena(std::move(memory)), places(PlacesIn(*arena, options)) {
    for (size_t place = 0; place < places.size(); ++place) free.push_back(place);
  }

  const BatchReaderOptions options;
  const std::unique_ptr<HostArena> arena;
  std::vector<std::vector<Batch>>
      places;  // Each is owned by the thread, or by the StepBatches that holds it.

  Mutex mutex;
  CondVar changed;
  std::deque<size_t> free ABSL_GUARDED_BY(mutex);
  std::deque<size_t> ready ABSL_GUARDED_BY(mutex);  // In step order.
  absl::Status error ABSL_GUARDED_BY(mutex);        // Error of the step after those.
  bool leaving ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;  // The thread accesses nothing any more.

  void ReadAll();
  absl::Status ReadStep(int64_t step, std::vector<Batch>* to);
  bool AwaitPlace(size_t* place);
  // The place of the next step, or its error; nullopt if neither arrives within `patience`.
  std::optional<absl::StatusOr<size_t>> Take(std::chrono::nanoseconds patience);
  bool Leaving();
};

void BatchReader::Shelf::ReadAll() {
  size_t place = 0;
  for (int64_t step = options.first; step <= options.last && AwaitPlace(&place); ++step) {
    const absl::Status status = ReadStep(step, &places[place]);
    MutexLock lock(&mutex);
    if (status.ok()) {
      ready.push_back(place);
    } else {
      error = status;
    }
    changed.SignalAll();
    if (!status.ok()) break;
  }
  MutexLock lock(&mutex);
  ended = true;
  changed.SignalAll();
}

absl::Status BatchReader::Shelf::ReadStep(int64_t step, std::vector<Batch>* to) {
  for (size_t m = 0; m < to->size(); ++m) {
    if (Leaving()) return absl::CancelledError("the batch reader was destroyed");
    FSDPD_RETURN_IF_ERROR(options.read(step, static_cast<int64_t>(m), &(*to)[m]));
  }
  return absl::OkStatus();
}

// False: the reader is being destroyed.
bool BatchReader::Shelf::AwaitPlace(size_t* place) {
  MutexLock lock(&mutex);
  while (free.empty() && !leaving) changed.Wait(&mutex);
  if (leaving) return false;
  *place = free.front();
  free.pop_front();
  return true;
}

std::optional<absl::StatusOr<size_t>> BatchReader::Shelf::Take(std::chrono::nanoseconds patience) {
  MutexLock lock(&mutex);
  if (ready.empty() && error.ok()) changed.WaitFor(&mutex, patience);
  if (ready.empty()) return error.ok() ? std::nullopt : std::optional(absl::StatusOr<size_t>(error));
  const size_t place = ready.front();
  ready.pop_front();
  return place;
}

bool BatchReader::Shelf::Leaving() {
  MutexLock lock(&mutex);
  return leaving;
}

absl::StatusOr<std::unique_ptr<BatchReader>> BatchReader::Make(BatchReaderOptions options) {
  FSDPD_CHECK(options.read && options.held > 0 && StepBytes(options) > 0);
  const int64_t places = options.first > options.last ? 0 : PlacesFor(options);
  FSDPD_ASSIGN_OR_RETURN(
      std::unique_ptr<HostArena> arena,
      HostArena::Make(places * StepBytes(options), options.device, "batches that are read ahead"));
  return std::unique_ptr<BatchReader>(
      new BatchReader(std::make_shared<Shelf>(std::move(options), std::move(arena))));
}

BatchReader::BatchReader(std::shared_ptr<Shelf> shelf)
    : shelf_(std::move(shelf)),
      next_(shelf_->options.first),
      thread_([shelf = shelf_] { shelf->ReadAll(); }) {}

BatchReader::~BatchReader() {
  bool ended = false;
  {
    const absl::Time deadline = absl::Now() + kPatience;
    MutexLock lock(&shelf_->mutex);
    shelf_->leaving = true;
    shelf_->changed.SignalAll();
    while (!shelf_->ended && absl::Now() < deadline)
      shelf_->changed.WaitFor(&shelf_->mutex, absl::ToChronoNanoseconds(deadline - absl::Now()));
    ended = shelf_->ended;
  }
  if (ended) {
    thread_.join();
    return;
  }
  LogWarning("data read did not return: detached its thread");
  thread_.detach();
}

absl::StatusOr<StepBatches> BatchReader::Next(int64_t step,
                                              const std::function<absl::Status()>& interrupted) {
  FSDPD_CHECK(step == next_ && step <= shelf_->options.last);
  absl::Duration waited;
  std::optional<absl::StatusOr<size_t>> place = shelf_->Take(std::chrono::nanoseconds::zero());
  if (!place.has_value()) {
    const Clock* const clock = shelf_->options.clock;
    const absl::Time begin = clock->Now();
    for (bool told = false; !place.has_value(); place = shelf_->Take(kAskEvery)) {
      FSDPD_RETURN_IF_ERROR(interrupted());
      if (told || clock->Now() - begin < kTellAfter) continue;
      told = true;
      LogWarning("step waited for data: step=%d longer_than=%s", step, absl::FormatDuration(kTellAfter));
    }
    waited = clock->Now() - begin;
  }
  FSDPD_RETURN_IF_ERROR(place->status());
  ++next_;
  const auto give_back = [shelf = shelf_, place = **place](std::vector<Batch>*) {
    MutexLock lock(&shelf->mutex);
    shelf->free.push_back(place);
    shelf->changed.SignalAll();
  };
  return StepBatches({&shelf_->places[**place], give_back}, absl::ToDoubleSeconds(waited));
}

}  // namespace fsdpd
