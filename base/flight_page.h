// The flight recorder: a page in memory that says where each lane of a rank stands, so that an agent can read
// it while the rank is stopped, hangs or is dead. Instructions are named in it, so that no plan is needed to
// read it.
//
//   agent: MakeFlightPage -> start the rank with it -> WhereLanesStand, whenever it wants
//   rank:  FlightPage::Map -> Describe, once -> lanes write PackProgress() to word()
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
// size sealed: a store there needs nothing that could be used up. 1.04 MiB for each rank.
//
// Thread safety: WhereLanesStand and stores to words from anywhere, at the same time; Describe once, before
// them.
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
constexpr int kFlightPageFd = 4;

constexpr int kMaxFlightLanes = 8;
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

// The rank's side.
class FlightPage {
 public:
  // `fd` may be closed then. FAILED_PRECONDITION when it is no page.
  static absl::StatusOr<std::unique_ptr<FlightPage>> Map(int fd);
  ~FlightPage();
  FlightPage(const FlightPage&) = delete;
  FlightPage& operator=(const FlightPage&) = delete;

  // Names of lanes and of each program's instructions.
  void Describe(const std::vector<std::string>& lanes, const std::vector<std::string>& training,
                const std::vector<std::string>& evaluation);

  std::atomic<uint64_t>* word(int lane);
  // The step that was launched last, as a plain number.
  std::atomic<uint64_t>* launched() { return word(kMaxFlightLanes); }

 private:
  explicit FlightPage(std::byte* memory) : memory_(memory) {}

  std::byte* const memory_;
};

// The agent's side. The descriptor is the caller's, closed at execve. RESOURCE_EXHAUSTED and others by errno.
absl::StatusOr<int> MakeFlightPage();

// "step 12: compute after Backward layer.2 mb 0, reduce in Reduce layer.3 mb 0": where the first lane stands
// and what others are in; lanes between two instructions are named when there is nothing else to say. ""
// before the first instruction; FAILED_PRECONDITION until the page is described; INVALID_ARGUMENT for what is
// no page that this version wrote.
constexpr size_t kMaxFlightText = 1024;  // What is longer is cut.
absl::StatusOr<std::string> WhereLanesStand(int fd);

}  // namespace fsdpd
