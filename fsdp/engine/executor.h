// Runs programs over five lanes: each instruction waits for the marks it depends on, of its own step and of
// the step before, is submitted to its lane, and leaves marks for others and for telemetry. It knows lanes
// and marks; what an instruction does is operations.h, when it is due is the program.
//
// Call order: Submit a step, later Collect it; steps are collected in the order they were submitted. On CUDA
// the host may submit the next step before it collects, so that the device never waits for the host; at most
// kMaxInFlight steps are open. Evaluate runs one round from start to end, while no step is open.
//
// With a flight page (base/flight_page.h), each lane says there which instruction it is in: when what it
// waited for is done, and again when it has ended. A lane that says what it has ended waits for the next
// one's turn.
//
// An error of one lane stops the submission, aborts all communicators (so that no lane stays blocked in a
// collective) and comes back with step and instruction in its text.
//
// Thread safety: one thread drives it. Errors: that of the first instruction that failed; CANCELLED when
// `stop` was seen between two instructions. After any error the executor is unusable.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/flight_page.h"
#include "base/mutex.h"
#include "fsdp/engine/operations.h"
#include "fsdp/lane/lane.h"
#include "fsdp/telemetry/step_timing.h"

namespace fsdpd {

using Lanes = std::array<std::unique_ptr<Lane>, kLanes>;  // By LaneId.

// CPU: compute on the calling thread, the others on threads of their own. CUDA: five streams, none of them
// the default one, which would order itself with all others; those that communicate have high priority, so
// that their small kernels start although compute fills the device.
Lanes MakeLanes(DeviceKind device, int device_index);

// For tests of what happens between two steps: CPU lanes on which the host can run ahead, as it does on CUDA.
Lanes MakeRunAheadLanes();

class Executor {
 public:
  static constexpr int kMaxInFlight = 2;  // Results have two slots.

  // Makes the operations on the compute lane. LibTorch's errors come back as Status. `stop` and `parts`
  // outlive the executor, as does `flight` (null: lanes show their progress to nobody).
  static absl::StatusOr<std::unique_ptr<Executor>> Make(const OperationParts& parts, Lanes lanes,
                                                        const std::atomic<bool>* stop,
                                                        FlightPage* flight = nullptr);

  // Waits for every lane, unless it was abandoned; with steps open, Abandon.
  ~Executor();

  // REQUIRES: fewer than kMaxInFlight steps are open.
  absl::Status Submit(const StepOrder& order, std::vector<Batch> batches);

  // Waits for the oldest open step.
  absl::StatusOr<StepResult> Collect();

  int in_flight() const { return static_cast<int>(open_.size()); }

  // One round of `program`. REQUIRES: in_flight() is 0.
  absl::StatusOr<StepResult> Evaluate(const Program& program, const Batch& batch);

  // Aborts all communicators and drains the lanes. The executor is unusable from then on.
  void Abandon();

  // Of the step collected last, in the program's order. Seconds count from when its compute could have begun.
  const std::vector<Span>& spans() const { return spans_; }

 private:
  struct Marks {
    MarkPtr start;
    MarkPtr end;
  };
  // A program once through.
  struct Execution {
    const Program* program = nullptr;
    std::string name;  // "step 12", for errors.
    int64_t step = 0;  // That it is, or that it follows.
    bool saves = false;
    int result_slot = 0;
    MarkPtr begin;
    std::vector<Marks> marks;  // By instruction.
  };
  using ExecutionPtr = std::shared_ptr<Execution>;

  Executor(const OperationParts& parts, Lanes lanes, const std::atomic<bool>* stop)
      : parts_(parts), lanes_(std::move(lanes)), stop_(stop) {}

  Lane* lane(LaneId id) { return lanes_[static_cast<int>(id)].get(); }
  void SubmitWork(LaneId lane, std::string where, std::function<absl::Status()> work);
  absl::Status SubmitAll(Execution* execution, std::function<absl::Status()> begin);
  void SubmitInstruction(Execution* execution, int index);
  void ShowProgress(FlightPage* flight);
  absl::StatusOr<StepResult> Await(const Execution& execution);
  absl::Status Interrupted() const;
  absl::Status Fail(const absl::Status& status);
  void MeasureSpans(const Execution& execution);
  void RecordError(const absl::Status& status);
  absl::Status FirstError() const;

  const OperationParts parts_;
  Lanes lanes_;
  const std::atomic<bool>* const stop_;
  std::unique_ptr<Operations> operations_;
  std::deque<ExecutionPtr> open_;  // Submitted and not collected, the oldest first.
  ExecutionPtr previous_;          // The training step submitted last.
  int64_t submitted_ = 0;
  bool abandoned_ = false;
  std::vector<Span> spans_;

  mutable Mutex mutex_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);  // Lanes on threads write it.
};

}  // namespace fsdpd
