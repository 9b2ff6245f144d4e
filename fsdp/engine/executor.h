// Executor: runs a step's program over lanes. Each instruction waits for the events of the instructions it
// depends on, in its own step and in the previous one, is submitted to its lane, and records events for its
// dependents and for telemetry. The executor only knows lanes and events: operations.h implements the
// instructions, and the program defines their order.
//
// Call order: Submit a step, Collect it later; steps are collected in submission order. On CUDA the host may
// submit the next step before it collects the previous one, so the device never waits for the host. At most
// kMaxInFlight steps are open. Evaluate runs one round of evaluation to completion, while no step is open.
//
// CUDA graphs: if possible, a step is recorded once and then launched as one graph (fsdp/lane/lane_graph.h).
// The boundary is at the norm, for which all lanes wait anyway. So a graph holds the updates of the previous
// step followed by this step up to and including its norm:
//
//   graph N:  updates of step N-1 | gathers, forward, backward, reduce, norm of step N
//
// and the first gathers still overlap with those updates. A step's updates are therefore submitted with the
// next step. They are submitted separately if there is none to join: before Collect while no later step is
// open, and for a step that saves and the step after it. There are two graphs, one per result slot. Inputs
// that differ from step to step (batches, learning rate) are not recorded: Operations::BeginStep sets them
// before each launch.
//
// Flight recorder (base/rank/flight_recorder.h): each lane records which instruction it executes, once when
// the instruction's dependencies are met and again when it has finished. A lane whose last record is finished
// is waiting for its next instruction.
//
// If a lane fails, submission stops and all communicators are aborted, so that no lane stays blocked in a
// collective. The error names the step and the instruction.
//
// Thread safety: used by one thread. Errors: that of the first instruction that failed; CANCELLED if `stop`
// was set. After any error the executor is unusable.
#pragma once

#include <absl/time/time.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/rank/flight_recorder.h"
#include "fsdp/engine/operations/operations.h"
#include "fsdp/lane/lane.h"
#include "fsdp/lane/lane_graph.h"
#include "fsdp/memory/step_peak.h"
#include "fsdp/memory/step_pool.h"
#include "fsdp/telemetry/step_timing.h"

namespace fsdpd {

using Lanes = std::array<std::unique_ptr<Lane>, kLanes>;  // By LaneId; null if unused.

// CPU: compute runs on the calling thread, every other lane on its own thread. CUDA: streams, none of which
// is the default stream, as that would synchronize with all others. All lanes but compute have high priority:
// communication starts even if compute fills the device, and gathers do not wait behind an update. `program`:
// the training program.
Lanes MakeLanes(DeviceKind device, int device_index, const Program& program);

// For tests of what happens between two steps: CPU lanes on which the host can run ahead, as on CUDA.
Lanes MakeRunAheadLanes(const Program& program);

class Executor {
 public:
  static constexpr int kMaxInFlight = 2;  // The number of result slots.

  // Creates the operations on the compute lane. Exceptions of LibTorch are returned as Status. `stop`,
  // `parts` and `flight` (null: no flight recorder) must outlive the executor.
  static absl::StatusOr<std::unique_ptr<Executor>> Make(const OperationParts& parts, Lanes lanes,
                                                        const std::atomic<bool>* stop,
                                                        FlightRecorder* flight = nullptr);

  // Tracks in `peak` where in a step the memory of the compute lane is highest. REQUIRES: no step was
  // submitted; `peak` outlives the executor.
  void WatchMemory(StepPeak* peak) { peak_ = peak; }

  // Records steps as graphs from now on, provided that all ranks can. REQUIRES: no step was submitted, and
  // all ranks call it; `device_index` is the device of the lanes.
  void UseGraphs(int device_index);

  // Abandons if steps are open; otherwise waits for every lane, unless Abandon() was called before.
  ~Executor();

  // REQUIRES: fewer than kMaxInFlight steps are open; the batches' memory stays unchanged until the step is
  // collected.
  absl::Status Submit(const StepInputs& inputs, std::vector<Batch> batches);

  // The step submitted last was launched as a graph, so the allocator did not see its allocations.
  bool launched_as_graph() const { return previous_ != nullptr && previous_->recorded != nullptr; }

  // Waits for the oldest open step and returns its result.
  absl::StatusOr<StepResult> Collect();

  int in_flight() const { return static_cast<int>(open_.size()); }

  // Runs one round of evaluation. REQUIRES: in_flight() is 0.
  absl::StatusOr<StepResult> Evaluate(const Program& program, const Batch& batch);

  // Raises the expert capacity after an overflow; steps are recorded again. REQUIRES: in_flight() is 0, and
  // all ranks call it.
  void GrowExpertCapacity(double expert_capacity);

  // Aborts all communicators and drains the lanes. The executor is unusable afterwards.
  void Abandon();

  // The step collected last was launched as a CUDA graph: its spans start at second 0, when the launch is
  // prepared.
  bool collected_launch() const { return collected_launch_; }
  // Timings of the step collected last, in program order. Second 0 is when its compute could have started.
  const std::vector<Span>& spans() const { return spans_; }
  // When the host saw the end of that step. The host was waiting for it, unless the device was ahead.
  absl::Time collected_at() const { return collected_at_; }
  // Time between second 0 of the step before and that of the step collected last. REQUIRES: two steps were
  // collected.
  double SecondsSinceStepBefore() const;

 private:
  struct InstructionEvents {
    LaneEventPtr start;
    LaneEventPtr end;
  };
  // A recorded step. `events` covers the updates of the previous step and the other instructions of its own.
  struct Recorded {
    std::unique_ptr<LaneGraph> graph;
    std::vector<InstructionEvents> events;  // By instruction.
  };
  // One run of a program.
  struct Execution {
    const Program* program = nullptr;
    std::string name;  // "step 12", for error messages.
    int64_t step = 0;  // For an evaluation, the step that it follows.
    bool saves = false;
    int result_slot = 0;
    LaneEventPtr begin;
    std::vector<InstructionEvents> events;  // By instruction; null if launched in a graph.
    const Recorded* recorded = nullptr;     // The launched graph; launch_end: its end.
    LaneEventPtr launch_end;
  };
  // A range of a program's instructions that is being submitted to the lanes.
  struct InstructionRange {
    const Program* program = nullptr;
    std::string name;
    int64_t step = 0;  // For allocations. progress.step is relative to the launch if `records`.
    LaneProgress progress;
    bool saves = false;
    bool records = false;
    const std::vector<InstructionEvents>* before = nullptr;  // The previous step's; null: wait for none.
    std::vector<InstructionEvents>* events = nullptr;
  };
  using ExecutionPtr = std::shared_ptr<Execution>;

  Executor(const OperationParts& parts, Lanes lanes, const std::atomic<bool>* stop)
      : parts_(parts), lanes_(std::move(lanes)), stop_(stop) {}

  Lane* lane(LaneId id) { return lanes_[static_cast<int>(id)].get(); }
  std::vector<Lane*> AllLanes();
  void SubmitWork(LaneId lane, std::string where, std::function<absl::Status()> work);
  void Begin(Execution* execution, std::function<absl::Status()> begin);
  absl::Status SubmitRange(const InstructionRange& range, size_t begin, size_t end);
  void SubmitInstruction(const InstructionRange& range, int index);
  void AwaitNorm();
  absl::Status SubmitGradients(Execution* execution);
  absl::Status SubmitUpdates();
  void FollowLaunch();
  void JoinLanes();
  absl::StatusOr<bool> HasGraph(int64_t step, int result_slot);
  absl::Status Record(int64_t step, Recorded* recorded);
  absl::StatusOr<int64_t> CountRecordingFailures(bool recorded);
  void Launch(Execution* execution, const Recorded& recorded);
  void ShowProgress(FlightRecorder* flight);
  absl::StatusOr<StepResult> Await(const Execution& execution);
  absl::Status Interrupted() const;
  absl::Status Fail(const absl::Status& status);
  void MeasureSpans(const Execution& execution);
  void RecordError(const absl::Status& status);
  absl::Status FirstError() const;

  const OperationParts parts_;
  Lanes lanes_;
  const std::atomic<bool>* const stop_;
  StepPeak* peak_ = nullptr;
  std::unique_ptr<Operations> operations_;
  std::deque<ExecutionPtr> open_;  // Submitted and not collected, oldest first.
  ExecutionPtr previous_;          // The training step submitted last.
  ExecutionPtr before_previous_;   // The training step before previous_.
  bool updates_due_ = false;       // The updates of previous_ are not submitted yet.
  int64_t submitted_ = 0;
  size_t gradients_ = 0;  // Number of instructions before the updates, in the training program.
  bool graphs_ = false;
  int64_t recorded_from_ = 0;                    // Record steps once this many were submitted.
  std::unique_ptr<StepPool> pool_;               // Set by UseGraphs.
  std::array<Recorded, kMaxInFlight> recorded_;  // By result slot.
  LaneEventPtr launch_end_;  // Launch whose end only the compute lane has waited for; or null.
  bool abandoned_ = false;
  std::vector<Span> spans_;
  absl::Time collected_at_;
  LaneEventPtr collected_begin_;
  LaneEventPtr before_collected_begin_;
  bool collected_launch_ = false;

  mutable Mutex mutex_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);  // Written by lane threads.
};

}  // namespace fsdpd
