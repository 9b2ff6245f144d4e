// Flight recorder: shared memory with the phase of a rank and the position of each of its lanes, which an
// agent can read while the rank is stopped, hangs or is dead. It contains the names of instructions, so
// reading it needs no plan.
//
//   agent: MakeFlightRecorder -> start the rank with it -> ReadFlight, DescribeLanePositions, at any time
//   rank:  FlightRecorder::Map -> PhaseScope ... -> Describe, once -> lanes write PackProgress() to word()
//
// Layout: header | word of each lane | word of the launched step | word of the phase | instruction names
//
// One word holds the whole position of a lane (step, instruction, inside or after it), so a single store
// updates it and readers need no consistent view of several values. Each word has kFlightWordBytes of its
// own: a CUDA stream registers that much with its device, each stream separately.
//
// CUDA graphs: a recorded step that is launched again stores the same words each time, so it stores the step
// relative to `launched`, the step that was launched last. For example, launched = 12 and a word with step 0
// means step 12. Until a lane has begun with a new launch, its word of the previous launch is taken as part
// of the new one.
//
// Readers do not trust the content, which a broken rank may have written: everything is checked, counts are
// bounded, and text becomes printable ASCII of bounded length. The agent reads with pread and never maps the
// memory, since reading a file cannot fault. The rank maps it, so its memory is allocated when it is created
// and its size is sealed: a store cannot fail. 1.06 MiB per rank.
//
// Thread safety: reads and stores to words from any thread, concurrently; Describe once, before lanes store.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fsdpd {

// Descriptor of the flight recorder in the rank, if it has one.
constexpr int kFlightRecorderFd = 4;

constexpr int kMaxFlightLanes = 12;  // More than are in use, so adding a lane does not change the format.
constexpr size_t kFlightWordBytes = 4096;
// About 7 instructions per layer and micro-batch: 200 layers with 11 micro-batches. Instructions beyond have
// their number as name.
constexpr size_t kMaxFlightNames = 16384;
constexpr size_t kMaxFlightNameBytes = 64;  // Including the terminating zero; longer names are truncated.

struct LaneProgress {
  int64_t step = 0;         // Below 2^31; a job has at most 10^9.
  int64_t instruction = 0;  // Below 2^29; its index in the program.
  bool evaluation = false;  // In the evaluation program, after that step.
  bool inside = false;      // Begun and not ended. False: ended, and the next one has not begun.
  bool recorded = false;    // `step` is relative to the step that was launched last.
};
uint64_t PackProgress(const LaneProgress& progress);  // Never 0, the word of a lane that has not begun.
LaneProgress UnpackProgress(uint64_t word);

// Phase of a rank. Steps and evaluations are kTraining; lanes show the position in them.
enum class FlightPhase : uint64_t {
  kStarting,  // Initial value: the code of the rank is not running yet.
  kLoading,   // Connecting to peers and loading its initial state.
  kTraining,
  kReading,  // Waiting for data during training.
  kSaving,   // Waiting until a checkpoint is written.
  kEnding,   // All steps are done.
};

struct FlightLane {
  std::string name;
  bool exchanges = false;  // Its instructions wait for other ranks.
};

// Used by the rank.
class FlightRecorder {
 public:
  // `fd` may be closed afterwards. FAILED_PRECONDITION if it is not a flight recorder.
  static absl::StatusOr<std::unique_ptr<FlightRecorder>> Map(int fd);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Sets the lanes and the names of the instructions of each program.
  void Describe(const std::vector<FlightLane>& lanes, const std::vector<std::string>& training,
                const std::vector<std::string>& evaluation);

  std::atomic<uint64_t>* word(int lane);
  // The step that was launched last, as a plain number.
  std::atomic<uint64_t>* launched() { return word(kMaxFlightLanes); }
  std::atomic<uint64_t>* phase() { return word(kMaxFlightLanes + 1); }  // A FlightPhase.

 private:
  explicit FlightRecorder(std::byte* memory) : memory_(memory) {}

  std::byte* const memory_;
};

// Sets the phase for the lifetime of this object, then restores the previous one. `page` may be null. Used on
// one thread only.
class PhaseScope {
 public:
  PhaseScope(FlightRecorder* page, FlightPhase phase)
      : page_(page), before_(page != nullptr ? page->phase()->exchange(static_cast<uint64_t>(phase)) : 0) {}
  ~PhaseScope() {
    if (page_ != nullptr) page_->phase()->store(before_);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  FlightRecorder* const page_;
  const uint64_t before_;
};

// Used by the agent. The caller owns the descriptor, which is closed at execve. RESOURCE_EXHAUSTED if there
// is no memory, others by errno.
absl::StatusOr<int> MakeFlightRecorder();

// Position of a lane that has begun.
struct LanePlace {
  int lane = 0;
  std::string lane_name;
  bool exchanges = false;
  LaneProgress at;  // `step` is absolute and `recorded` is false.
  std::string instruction;
};
struct FlightState {
  FlightPhase phase = FlightPhase::kStarting;
  std::vector<LanePlace> lanes;
};
// Works before Describe() too, then without lanes. INVALID_ARGUMENT if this version did not write it.
absl::StatusOr<FlightState> ReadFlight(int fd);

// "step 12: compute after Backward layer.2 mb 0, reduce in Reduce layer.3 mb 0": position of the first lane,
// and of others that are inside of an instruction; lanes between two instructions only if there are no
// others. "" before the first instruction. FAILED_PRECONDITION before Describe(), INVALID_ARGUMENT if this
// version did not write it.
constexpr size_t kMaxFlightText = 1024;  // Longer texts are truncated.
absl::StatusOr<std::string> DescribeLanePositions(int fd);
std::string TextOf(const std::vector<LanePlace>& lanes);  // The same text for lanes that were read.

}  // namespace fsdpd
