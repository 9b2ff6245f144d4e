// One rank of one job, from an accepted plan to its last step: owns the sharded parameters, the units, the
// arena and the executor, feeds batches, evaluates, and reports each step.
//
// Call order: Make (allocates and initialises; on CUDA all ranks together), Run (all steps). The mesh comes
// from the caller, so ranks are processes over TCP or NCCL in a job and threads over local memory in a test.
// Callers make sure beforehand that all ranks have the same program (agreement.h). REQUIRES: plan.accepted();
// the plan and `stop` outlive the trainer; device kCuda only where CUDA is available, with the rank's device
// current.
//
// With a restore, steps go on after its state's. Where the spec saves, checkpoints are written while steps go
// on (saver.h), and Run ends when the last one is on disk. After which steps those are is save_schedule.h's.
//
// A rank that is told to leave (departure.h) asks for a checkpoint and leaves when it is on disk or cannot
// be; one that has no time for that, or nothing to save, leaves before its next step.
//
// Steps overlap: with CUDA the host submits a step before it reads the result of the one before, so that the
// device never waits for it. Reports keep their order, and an evaluation runs when nothing else does.
//
// Thread safety: one thread, except Abort. Errors of Run: CANCELLED when `stop` was set, and when it was told
// to leave; OUT_OF_RANGE naming the step, with BadStepOf() it, when it is not finite (with fp16, only once
// the loss scale has become useless) or a spike, and the spec does not say that it is skipped, or too many
// were (bad_step.h); those of data, communication and device with their place. The communicators are aborted
// after any error: the other ranks learn of it at their next collective. A trainer whose Run failed on CUDA
// may have streams that wait for a peer for ever, and LibTorch's destructors would wait with them: the
// process leaves by _exit.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "fsdp/comm/mesh.h"
#include "fsdp/engine/data_warnings.h"
#include "fsdp/engine/departure.h"
#include "fsdp/engine/executor.h"
#include "fsdp/engine/rank_data.h"
#include "fsdp/engine/restore.h"
#include "fsdp/engine/save_schedule.h"
#include "fsdp/engine/saver.h"
#include "fsdp/engine/snapshot.h"
#include "fsdp/memory/memory_snapshot.h"
#include "fsdp/memory/spike_detector.h"
#include "fsdp/memory/step_peak.h"
#include "fsdp/model/user_model.h"
#include "fsdp/telemetry/device_recorder.h"
#include "fsdp/telemetry/step_course.h"
#include "fsdp/telemetry/step_timeline.h"
#include "fsdp/telemetry/step_traces.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

constexpr absl::Duration kCourseEvery = absl::Seconds(1);  // Of what people look at.

struct TrainerOptions {
  const Plan* plan = nullptr;
  ConnectedMesh mesh;
  int device_index = 0;
  const std::atomic<bool>* stop = nullptr;  // Polled between instructions.
  const Departure* departure = nullptr;     // Polled between steps; null: nobody tells it to leave.
  InitialValues initial;                    // Empty: the model's own, from the spec's seed.
  const UserModel* model = nullptr;         // The plan's model; null: the one that its spec names.
  StepTraces* traces = nullptr;             // Which steps are written down, and where; null: none.
  FlightRecorder* flight =
      nullptr;  // Where lanes say how far they are (base/flight_recorder.h); null: nowhere.
  const Restore* restore = nullptr;  // What to go on from, read by Make alone; null: a fresh start.
  // How ranks tell each other what they read (rank_data.h), and, where the spec saves, what is written.
  Store* store = nullptr;
  bool store_may_be_away = false;
  // Where the spec saves: whose checkpoints they are, where, and who hears of them (Saver::Options).
  JobLabel label = {};
  DirectoryLock* directory = nullptr;
  std::function<void(const v1::SavedCheckpoint&)> on_saved = {};
  // From Snapshot::Allocate(); null: Make allocates it.
  std::unique_ptr<HostArenaFuture> snapshot_memory = nullptr;
  // Make's own failure, while others' are still to come of it.
  std::function<void(const absl::Status&)> on_failed = {};
  // Who hears how the newest step went, once in kCourseEvery at most; empty: nobody, and the allocator's
  // height is left to others of the process.
  std::function<absl::Status(const v1::StepCourse&)> on_course = {};
  Clock* clock = Clock::Real();  // For checkpoint.every_minutes, and how long a step waits for its data.
  // For tests: CPU ranks, too, submit a step before they read the last one's result, as CUDA ranks do.
  bool run_ahead_on_cpu = false;
  std::vector<SampleRange> passed_over = {};  // Samples that are not trained on, as Merged() gives them.
  // No other rank allocates in this process: what is allocated on CPU is compared with the plan.
  bool alone = false;
  // For tests: RankDataOptions'.
  std::function<void(int64_t step)> before_read = {};
};

class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(TrainerOptions options);
  ~Trainer();  // What it had recorded for traces no longer is.

  // What it reads: RankData::Traits(), on rank 0 of a job that has or makes checkpoints.
  const std::vector<std::string>& token_files() const { return options_.label.data; }

  // Calls `on_step` after each step on this thread; an error from it ends the run.
  absl::Status Run(const std::function<absl::Status(const v1::StepReport&)>& on_step);

  // After Run, before the process exits: others may still read what this rank sent last. Best effort.
  void AwaitOthers();

  // Wakes the lanes from collectives whose peers are gone; Run then fails. Any thread.
  void Abort();

  // Of the step reported last; empty before.
  Timeline LastTimeline() const;

  const ShardedParams& params() const { return params_; }
  const ConnectedMesh& mesh() const { return options_.mesh; }

 private:
  using OnStep = std::function<absl::Status(const v1::StepReport&)>;

  // Submitted and not yet reported.
  struct OpenStep {
    StepOrder order;
    StepBatches batches;  // Until it is collected.
    v1::MemoryReport memory;
    bool tells_course = false;
    HeldBytes held;                                  // Where its course is told.
    std::shared_ptr<const MemorySnapshot> snapshot;  // Where one is to be written.
    std::vector<std::string> warnings;
  };

  Trainer(TrainerOptions options, RankData data, Arena arena, ShardedParams params);

  static absl::Status MakeOf(TrainerOptions* given, std::unique_ptr<Trainer>* made);

  absl::Status RunSteps(const OnStep& on_step);
  absl::Status LeaveIfDue(int64_t next_step, const OnStep& on_step);
  absl::Status LeaveUnlessItFits(int64_t next_step);
  absl::Status FreeSnapshot(const OnStep& on_step);
  absl::Status Submit(int64_t step, bool saves);
  absl::Status SubmitOpen(OpenStep* step);
  absl::Status ReplayOpenSteps();
  std::string GrowExpertCapacity();  // Says so.
  absl::Status Finish(const OnStep& on_step);
  bool told_to_leave() const { return options_.departure != nullptr && options_.departure->told(); }
  bool RunsAhead() const;
  bool EvaluatesAfter(int64_t step) const;
  absl::StatusOr<StepBatches> NextBatches(BatchReader* reader, int64_t number);
  absl::Status Evaluate(v1::StepReport::Evaluation* report, std::vector<std::string>* warnings);
  std::optional<v1::BadStep> FindBadStep(const OpenStep& step, const StepResult& result) const;
  v1::StepReport Report(const OpenStep& step, const StepResult& result) const;
  v1::MemoryReport ReadMemory();
  void MakeRecorder();
  void RecordForTraces();
  void KeepMemory(OpenStep* step);
  void WriteDown(const OpenStep& step);
  Timeline TraceOf(const OpenStep& step);
  HeldBytes HeldByStep() const;
  absl::Status TellCourse(const OpenStep& step, const v1::StepReport& report);
  absl::Status MakeSaver(std::unique_ptr<HostArenaFuture> memory);
  absl::Status AwaitLastSave() const;
  absl::Status Interrupted() const;
  void Count(const StepResult& result);
  StepData DataOf(const OpenStep& step, const StepResult& result, const v1::StepReport& report) const;

  const Spec& spec() const { return options_.plan->spec; }

  const TrainerOptions options_;
  const RankData data_;
  const Arena arena_;
  ShardedParams params_;
  int64_t rounds_done_ = 0;  // Of all evaluations.
  std::vector<std::unique_ptr<Unit>> units_;
  std::unique_ptr<OffloadedActivations> kept_;  // Where the spec has layers keep anything in host memory.
  std::unique_ptr<Snapshot> snapshot_;          // Set, like the saver, where the spec saves.
  StepPeak peak_;                               // Lanes use it.
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Saver> saver_;
  std::optional<SaveSchedule> schedule_;  // Set by Run.
  std::deque<OpenStep> open_;             // The oldest first.
  double step_seconds_ = 0;               // Of the step reported last.
  double expert_capacity_ = kExpertCapacity;
  int64_t step_peak_bytes_ = 0;           // Of the allocator, in the step last submitted by hand.
  TrainingState state_;                   // After the step reported last.
  std::optional<DataWarnings> warnings_;  // Set by Run.
  SpikeDetector spikes_;
  std::optional<StepCourses> courses_;                  // Set where anybody hears of them.
  absl::Time course_submitted_ = absl::InfinitePast();  // When the step of the last one was.
  bool records_memory_ = false;
  std::shared_ptr<const std::vector<std::string>> names_;  // Of instructions; set with the first snapshot.
  std::shared_ptr<DeviceRecorder> recorder_;               // On GPUs, where steps can be traced.
  int64_t traced_step_ = 0;                                // The last one; 0: none.
  absl::Time traced_begin_;                                // When that began, by the host's clock.
  absl::Time traced_end_ = absl::InfinitePast();           // Likewise.
};

}  // namespace fsdpd
