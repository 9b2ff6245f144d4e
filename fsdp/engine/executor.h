// Runs programs over lanes: each instruction waits for the marks it depends on, of its own step and of
// the step before, is submitted to its lane, and leaves marks for others and for telemetry. It knows lanes
// and marks; what an instruction does is operations.h, when it is due is the program.
//
// Call order: Submit a step, later Collect it; steps are collected in the order they were submitted. On CUDA
// the host may submit the next step before it collects, so that the device never waits for the host; at most
// kMaxInFlight steps are open. Evaluate runs one round from start to end, while no step is open.
//
// Where that can be, a step is recorded once and then launched as one graph (fsdp/lane/lane_graph.h). It is
// cut at the norm, for which all lanes wait anyway: a graph holds the updates of the step before and then its
// own step up to and with its norm, so that the first gathers run beside those updates as they do otherwise.
// So a step's updates are submitted with the next step, and by themselves where none follows at once: before
// a step is collected while no later one is open, and after one that saves and the next. There are two
// graphs, one for each place of results. What differs from step to step (batches, learning rate, which place)
// is not in them: Operations::BeginStep does it before each launch.
//
// With a flight recorder (base/flight_recorder.h), each lane says there which instruction it is in: when what
// it waited for is done, and again when it has ended. A lane that says what it has ended waits for the next
// one's turn.
//
// An error of one lane stops the submission, aborts all communicators (so that no lane stays blocked in a
// collective) and comes back with step and instruction in its text.
//
// Thread safety: one thread drives it. Errors: that of the first instruction that failed; CANCELLED when
// `stop` was seen between two instructions. After any error the executor is unusable.
#pragma once

#include <absl/time/time.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/flight_recorder.h"
#include "base/mutex.h"
#include "fsdp/engine/operations.h"
#include "fsdp/lane/lane.h"
#include "fsdp/lane/lane_graph.h"
#include "fsdp/memory/step_peak.h"
#include "fsdp/memory/step_pool.h"
#include "fsdp/telemetry/step_timing.h"

namespace fsdpd {

using Lanes = std::array<std::unique_ptr<Lane>, kLanes>;  // By LaneId; null where the job has no use for it.

// CPU: compute on the calling thread, the others on threads of their own. CUDA: streams, none of them
// the default one, which would order itself with all others; all others than compute have high
// priority, so that what communicates starts although compute fills the device, and gathers do not wait for
// an update that it holds up. `program`: the job's for training.
Lanes MakeLanes(DeviceKind device, int device_index, const Program& program);

// For tests of what happens between two steps: CPU lanes on which the host can run ahead, as it does on CUDA.
Lanes MakeRunAheadLanes(const Program& program);

class Executor {
 public:
  static constexpr int kMaxInFlight = 2;  // Results have two slots.

  // Makes the operations on the compute lane. LibTorch's errors come back as Status. `stop` and `parts`
  // outlive the executor, as does `flight` (null: lanes show their progress to nobody).
  static absl::StatusOr<std::unique_ptr<Executor>> Make(const OperationParts& parts, Lanes lanes,
                                                        const std::atomic<bool>* stop,
                                                        FlightRecorder* flight = nullptr);

  // Where a step's memory is highest is noted there, of what the compute lane runs. REQUIRES: no step was
  // submitted; it outlives the executor.
  void WatchMemory(StepPeak* peak) { peak_ = peak; }

  // Steps are recorded and launched from here on, if all ranks' can be. REQUIRES: no step was submitted, and
  // all ranks call it; `device_index` is the device of the lanes.
  void UseGraphs(int device_index);

  // Waits for every lane, unless it was abandoned; with steps open, Abandon.
  ~Executor();

  // REQUIRES: fewer than kMaxInFlight steps are open; the batches' memory stays as it is until the step is
  // collected.
  absl::Status Submit(const StepOrder& order, std::vector<Batch> batches);

  // Whether the step that was submitted last was launched: the allocator saw nothing of it.
  bool launched() const { return previous_ != nullptr && previous_->recorded != nullptr; }

  // Waits for the oldest open step.
  absl::StatusOr<StepResult> Collect();

  int in_flight() const { return static_cast<int>(open_.size()); }

  // One round of `program`. REQUIRES: in_flight() is 0.
  absl::StatusOr<StepResult> Evaluate(const Program& program, const Batch& batch);

  // Where a step lacked room for experts: from here on they have so much, and steps are recorded anew.
  // REQUIRES: in_flight() is 0, and all ranks call it.
  void GrowExpertCapacity(double expert_capacity);

  // Aborts all communicators and drains the lanes. The executor is unusable from then on.
  void Abandon();

  // The step collected last was launched: it has begun at 0, with what prepares the launch.
  bool collected_launch() const { return collected_launch_; }
  // Of the step collected last, in the program's order. Seconds count from when its compute could have begun.
  const std::vector<Span>& spans() const { return spans_; }
  // When the host saw that it had ended: it waits for that, unless the device was ahead of it.
  absl::Time collected_at() const { return collected_at_; }
  // From the begin of the one before, where spans() of that one count from, to its own. REQUIRES: two were
  // collected.
  double SecondsSinceStepBefore() const;

 private:
  struct Marks {
    LaneEventPtr start;
    LaneEventPtr end;
  };
  // A step that was recorded: marks of the updates of the one before, and of its own other instructions.
  struct Recorded {
    std::unique_ptr<LaneGraph> graph;
    std::vector<Marks> marks;  // By instruction.
  };
  // A program once through.
  struct Execution {
    const Program* program = nullptr;
    std::string name;  // "step 12", for errors.
    int64_t step = 0;  // That it is, or that it follows.
    bool saves = false;
    int result_slot = 0;
    LaneEventPtr begin;
    std::vector<Marks> marks;            // By instruction; null for what was launched.
    const Recorded* recorded = nullptr;  // What was launched for it, and when that has ended.
    LaneEventPtr launch_end;
  };
  // Some of a program's instructions on their way to the lanes.
  struct Walk {
    const Program* program = nullptr;
    std::string name;
    int64_t step = 0;  // As allocations are told of; progress's is counted from a launch where it `records`.
    LaneProgress progress;
    bool saves = false;
    bool records = false;
    const std::vector<Marks>* before = nullptr;  // Of the step before; null: none that this waits for.
    std::vector<Marks>* marks = nullptr;
  };
  using ExecutionPtr = std::shared_ptr<Execution>;

  Executor(const OperationParts& parts, Lanes lanes, const std::atomic<bool>* stop)
      : parts_(parts), lanes_(std::move(lanes)), stop_(stop) {}

  Lane* lane(LaneId id) { return lanes_[static_cast<int>(id)].get(); }
  std::vector<Lane*> AllLanes();
  void SubmitWork(LaneId lane, std::string where, std::function<absl::Status()> work);
  void Begin(Execution* execution, std::function<absl::Status()> begin);
  absl::Status SubmitWalk(const Walk& walk, size_t begin, size_t end);
  void SubmitInstruction(const Walk& walk, int index);
  void AwaitNorm();
  absl::Status SubmitGradients(Execution* execution);
  absl::Status SubmitUpdates();
  void FollowLaunch();
  void JoinLanes();
  absl::StatusOr<bool> HasGraph(int64_t step, int result_slot);
  absl::Status Record(int64_t step, Recorded* recorded);
  absl::StatusOr<int64_t> CountRefusals(bool recorded);
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
  std::deque<ExecutionPtr> open_;  // Submitted and not collected, the oldest first.
  ExecutionPtr previous_;          // The training step submitted last.
  ExecutionPtr before_previous_;   // The one before that.
  bool updates_due_ = false;       // Those of previous_ are not submitted yet.
  int64_t submitted_ = 0;
  size_t gradients_ = 0;  // So many of the training program's instructions come before its updates.
  bool graphs_ = false;
  int64_t recorded_from_ = 0;                    // Steps are recorded once so many were submitted.
  std::unique_ptr<StepPool> pool_;               // Set by UseGraphs.
  std::array<Recorded, kMaxInFlight> recorded_;  // By place of the result.
  LaneEventPtr launch_end_;  // Of the launch that lanes other than the first have not waited for; or null.
  bool abandoned_ = false;
  std::vector<Span> spans_;
  absl::Time collected_at_;
  LaneEventPtr collected_begin_;
  LaneEventPtr before_collected_begin_;
  bool collected_launch_ = false;

  mutable Mutex mutex_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);  // Lanes on threads write it.
};

}  // namespace fsdpd
