// Trainer: runs one rank of a job, from an accepted plan to its last step. Owns the sharded parameters, the
// units, the arena and the executor; reads batches, evaluates and saves. step_reporter.h reports each step.
//
// Call order: Make (allocates and initializes; on CUDA all ranks together), Run (all steps). The caller
// connects the mesh, so ranks are processes over TCP or NCCL in a job, and threads over local memory in a
// test. Callers verify beforehand that all ranks have the same program (agreement.h). REQUIRES:
// plan.accepted(); the plan and `stop` outlive the trainer; for kCuda, CUDA is available and the rank's
// device is current.
//
// With a restore, training continues after the restored step. If the spec saves, checkpoints are written
// while training continues (saver.h), after the steps that save_schedule.h selects, and Run returns when the
// last one is on disk.
//
// A rank that is asked to leave (departure.h) requests a checkpoint and leaves once it is written or has
// failed. Without enough time, or with nothing to save, it leaves before its next step.
//
// Steps overlap: on CUDA the host submits a step before it reads the previous result, so the device never
// waits for the host. Reports keep their order, and an evaluation runs while no step does.
//
// Thread safety: one thread, except Abort. Errors of Run:
//   CANCELLED      `stop` was set, or the rank was asked to leave.
//   OUT_OF_RANGE   a bad step ended the run (bad_step.h); BadStepOf() returns it. With fp16 a step that is
//                  not finite only counts once the loss scale has reached its minimum.
// and errors of data, communication and device, with their place. After any error the communicators are
// aborted, so the other ranks fail at their next collective. After a failed Run on CUDA, streams may wait for
// a peer forever, and LibTorch's destructors would block on them: the process must leave with _exit.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "fsdp/comm/connected_mesh.h"
#include "fsdp/engine/departure.h"
#include "fsdp/engine/executor.h"
#include "fsdp/engine/operations/snapshot.h"
#include "fsdp/engine/rank_data.h"
#include "fsdp/engine/restore.h"
#include "fsdp/engine/save_schedule.h"
#include "fsdp/engine/saver.h"
#include "fsdp/engine/step_reporter.h"
#include "fsdp/model/user_model.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

struct TrainerOptions {
  const Plan* plan = nullptr;
  ConnectedMesh mesh;
  int device_index = 0;
  const std::atomic<bool>* stop = nullptr;  // Polled between instructions.
  const Departure* departure = nullptr;     // Polled between steps; null: never asked to leave.
  InitialValues initial;                    // Empty: the model's own, from the spec's seed.
  const UserModel* model = nullptr;         // The plan's model; null: the model that the spec names.
  std::string package_dir = {};             // As in MakeModel().
  StepTraces* traces = nullptr;             // Selects and stores traces; null: none.
  FlightRecorder* flight = nullptr;         // Null: none (base/rank/flight_recorder.h).
  Restore* restore = nullptr;               // Used by Make only; null: fresh start.
  const Restore* base_model = nullptr;      // The same for the frozen weights of a LoRA job.
  std::string base_model_path = {};         // The checkpoint of base_model.
  // For comparing files between ranks (rank_data.h) and for the protocol of saves (saver.h).
  Store* store = nullptr;
  bool store_may_be_unreachable = false;
  // If the spec saves: owner, directory and observer of checkpoints (Saver::Options).
  JobLabel label = {};
  DirectoryLock* directory = nullptr;
  std::function<void(const v1::SavedCheckpoint&)> on_saved = {};
  // From Snapshot::Allocate(); null: Make allocates it.
  std::unique_ptr<HostArenaFuture> snapshot_memory = nullptr;
  // Called when Make fails, before its error causes other ranks to fail.
  std::function<void(const absl::Status&)> on_failed = {};
  // Receives the timeline of the newest step, at most once per kTimelineInterval. If empty, the allocator's
  // peak statistics are not reset per instruction.
  std::function<absl::Status(const v1::StepTimeline&)> on_timeline = {};
  Clock* clock = Clock::Real();  // For checkpoint.every_minutes, and data wait times.
  // For tests: CPU ranks submit a step before they read the previous result, as CUDA ranks do.
  bool run_ahead_on_cpu = false;
  std::vector<SampleRange> skipped_samples = {};  // Samples to skip, as Merged() returns them.
  // This rank is the only one in its process, so CPU memory can be compared with the plan.
  bool own_process = false;
  // For tests: as in RankDataOptions.
  std::function<void(int64_t step)> before_read = {};
};

class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(TrainerOptions options);

  // RankData::Traits(), on rank 0 of a job that loads or saves checkpoints; otherwise empty.
  const std::vector<std::string>& token_files() const { return options_.label.data; }

  int64_t samples_per_epoch() const { return data_.batches->samples_per_epoch(); }

  // Calls `on_step` after each step, on this thread; an error from it ends the run.
  absl::Status Run(const std::function<absl::Status(const v1::StepReport&)>& on_step);

  // After Run, before the process exits: other ranks may still read what this rank sent last. Best effort.
  void AwaitOthers();

  // Unblocks lanes from collectives whose peers are gone; Run then fails. Any thread.
  void Abort();

  // Timeline of the step reported last; empty before that.
  Timeline LastTimeline() const { return reporter_->TimelineOf(state_.step); }

  const ShardedParams& params() const { return params_; }
  const ConnectedMesh& mesh() const { return options_.mesh; }

 private:
  using OnStep = std::function<absl::Status(const v1::StepReport&)>;

  Trainer(TrainerOptions options, RankData data, Arena arena, ShardedParams params);

  static absl::Status Initialize(TrainerOptions* given, std::unique_ptr<Trainer>* made);

  absl::Status RunSteps(const OnStep& on_step);
  absl::Status LeaveIfDue(int64_t next_step, const OnStep& on_step);
  absl::Status LeaveUnlessItFits(int64_t next_step);
  absl::Status FreeSnapshot(const OnStep& on_step);
  absl::Status Submit(int64_t step, bool saves);
  absl::Status SubmitOpen(OpenStep* step);
  absl::Status ReplayOpenSteps();
  std::string GrowExpertCapacity();  // Returns a warning.
  absl::Status Finish(const OnStep& on_step);
  bool leave_requested() const { return options_.departure != nullptr && options_.departure->requested(); }
  bool RunsAhead() const;
  bool EvaluatesAfter(int64_t step) const;
  absl::StatusOr<StepBatches> NextBatches(BatchReader* reader, int64_t number);
  absl::Status Evaluate(const std::function<void()>& before_round, v1::StepReport::Evaluation* report,
                        std::vector<std::string>* warnings);
  std::optional<v1::BadStep> FindBadStep(const OpenStep& step, const StepResult& result) const;
  void MakeReporter();
  absl::Status MakeSaver(std::unique_ptr<HostArenaFuture> memory);
  absl::Status AwaitLastSave() const;
  absl::Status Interrupted() const;
  void UpdateState(const StepResult& result);

  const Spec& spec() const { return options_.plan->spec; }

  const TrainerOptions options_;
  const RankData data_;
  const Arena arena_;
  ShardedParams params_;
  int64_t rounds_done_ = 0;  // Rounds of all evaluations.
  std::vector<std::unique_ptr<Unit>> units_;
  std::unique_ptr<OffloadedActivations> offloaded_;  // Set if the spec offloads activations.
  std::unique_ptr<Snapshot> snapshot_;               // Set, like the saver, if the spec saves.
  std::unique_ptr<StepReporter> reporter_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Saver> saver_;
  std::optional<SaveSchedule> schedule_;  // Set by Run.
  std::deque<OpenStep> open_;             // Oldest first.
  double step_seconds_ = 0;               // Duration of the step reported last.
  double expert_capacity_ = kExpertCapacity;
  TrainingState state_;  // After the step reported last.
};

}  // namespace fsdpd
