// The flight recorder: a page in memory that says in which phase a rank is and where each of its lanes
// stands, so that an agent can read it while the rank is stopped, hangs or is dead. Instructions are named in
// it, so that no plan is needed to read it.
//
//   agent: MakeFlightRecorder -> start the rank with it -> ReadFlight, WhereLanesStand, whenever it wants
//   rank:  FlightRecorder::Map -> PhaseScope ... -> Describe, once -> lanes write PackProgress() to word()
//
// A word says all of its lane (step, instruction, inside or after it), so that one store changes it and
// nothing has to be read together. It has kFlightWordBytes of its own: that much a CUDA stream registers with
// its device, each stream for itself.
//
// A step that was recorded once and is launched again stores the same words each time: they count steps back
// from a word of its own, the step that was launched last. Until a lane has begun with that one, its word of
// the launch before is taken for it.
//
// To a reader a page is what a broken rank left: everything is checked, counts are bounded, text comes out as
// printable ASCII of bounded length. It is read by pread and never mapped by the agent, since no read of a
// file faults, whatever was done to it. The rank maps it, so its memory is reserved when it is made and the
// size sealed: a store there needs nothing that could be used up. 1.06 MiB for each rank.
//
// Thread safety: reading and stores to words from anywhere, at the same time; Describe once, before lanes
// store.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fsdpd {

// A descriptor at which a rank finds its page; one that is started without has none.
constexpr int kFlightRecorderFd = 4;

constexpr int kMaxFlightLanes = 12;  // More than there are: more of them are no other page.
constexpr size_t kFlightWordBytes = 4096;
// About 7 instructions a layer and micro-batch: 200 layers with 11. Those beyond have their number for a
// name.
constexpr size_t kMaxFlightNames = 16384;
constexpr size_t kMaxFlightNameBytes = 64;  // With the zero at its end; longer ones are cut.

struct LaneProgress {
  int64_t step = 0;         // Below 2^31; a job has at most 10^9.
  int64_t instruction = 0;  // Below 2^29, by its place in its program.
  bool evaluation = false;  // Of the evaluation's program, after that step.
  bool inside = false;      // Begun and not ended; otherwise ended, and what is next has not begun.
  bool recorded = false;    // `step` counts back from the step that was launched last.
};
uint64_t PackProgress(
    const LaneProgress& progress);  // Never 0, which is the word of a lane that never began.
LaneProgress UnpackProgress(uint64_t word);

// What a rank does as a whole. Steps and evaluations are kTraining, and lanes say where in them it is.
enum class FlightPhase : uint64_t {
  kStarting,  // Of a page that nobody has stored to: the rank's own code does not run yet.
  kLoading,   // It finds the others and what it starts from.
  kTraining,
  kReading,  // In the middle of training: its data.
  kSaving,   // It waits until a checkpoint is written.
  kEnding,   // All steps are done.
};

struct FlightLane {
  std::string name;
  bool exchanges = false;  // What it runs waits for other ranks.
};

// The rank's side.
class FlightRecorder {
 public:
  // `fd` may be closed then. FAILED_PRECONDITION when it is no page.
  static absl::StatusOr<std::unique_ptr<FlightRecorder>> Map(int fd);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Lanes, and names of each program's instructions.
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

// The rank is in `phase` for as long as this lives, and afterwards in the one before. `page` may be null. One
// thread, which is the only one that has them.
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

// The agent's side. The descriptor is the caller's, closed at execve. RESOURCE_EXHAUSTED and others by errno.
absl::StatusOr<int> MakeFlightRecorder();

// A lane that has begun.
struct LanePlace {
  int lane = 0;
  std::string lane_name;
  bool exchanges = false;
  LaneProgress at;  // Its step is a plain one, never counted back.
  std::string instruction;
};
struct FlightState {
  FlightPhase phase = FlightPhase::kStarting;
  std::vector<LanePlace> lanes;
};
// Also of a page that is not described yet, which shows no lane. INVALID_ARGUMENT for what is no page that
// this version wrote.
absl::StatusOr<FlightState> ReadFlight(int fd);

// "step 12: compute after Backward layer.2 mb 0, reduce in Reduce layer.3 mb 0": where the first lane stands
// and what others are in; lanes between two instructions are named when there is nothing else to say. ""
// before the first instruction; FAILED_PRECONDITION until the page is described; INVALID_ARGUMENT for what is
// no page that this version wrote.
constexpr size_t kMaxFlightText = 1024;  // What is longer is cut.
absl::StatusOr<std::string> WhereLanesStand(int fd);
std::string TextOf(const std::vector<LanePlace>& lanes);  // Likewise, of what was read.

}  // namespace fsdpd
