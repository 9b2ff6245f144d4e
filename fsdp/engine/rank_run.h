// Lifecycle of a rank, shared by all hosts of ranks (fsdpd-rank, the library, local tools): agree with the
// other ranks on the program and the checkpoint, connect, make the trainer, train, leave. Hosts customize it
// with hooks, which run on the calling thread unless noted.
//
// REQUIRES: plan, store, model, flight, departure, clock and stop outlive the call; the store outlives all
// ranks that are threads of the process. The trainer is destroyed before the call returns: a hook that keeps
// a pointer to it must drop it in on_leaving.
//
// Errors: those of agreement.h, comm/connected_mesh.h and trainer.h, and of the hooks. After an error the
// communicators are aborted, so that no other rank waits for this one. Thread safety: one thread per rank.
#pragma once

#include <absl/time/time.h>

#include <atomic>
#include <functional>
#include <string>

#include "fsdp/comm/connected_mesh.h"
#include "fsdp/comm/store.h"
#include "fsdp/engine/trainer.h"

namespace fsdpd {

struct RankRun {
  const Plan* plan = nullptr;
  int rank = 0;
  int device_index = 0;  // CUDA: the GPU; it becomes the current device.
  Store* store = nullptr;
  bool store_may_be_unreachable = false;      // As in Saver::Options.
  absl::Duration timeout = absl::Minutes(5);  // For other ranks to arrive.
  std::string bind_address = {};              // CPU: local address; empty: the communicator's default.
  // For ranks as threads that communicate in memory: the connected mesh, which is moved from. Null: the mesh
  // is connected over the store.
  ConnectedMesh* local = nullptr;
  const std::atomic<bool>* stop = nullptr;  // Null: never stops.
  const Departure* departure = nullptr;     // This and the next nine as in TrainerOptions.
  Clock* clock = Clock::Real();
  InitialValues initial = {};
  const UserModel* model = nullptr;
  std::string package_dir = {};
  StepTraces* traces = nullptr;
  FlightRecorder* flight = nullptr;
  bool run_ahead_on_cpu = false;
  bool own_process = false;
  std::vector<SampleRange> skipped_samples = {};
  // Identifies the job's own checkpoints (checkpoint_choice.h), and is written into new ones.
  JobLabel label = {};
  int64_t known_step = 0;  // As in ChooseCheckpoint().

  // Hooks; all may be empty. The trainer is made and does not run yet; the checkpoint is null for a fresh
  // start.
  std::function<absl::Status(Trainer*, const v1::RestoredCheckpoint*)> on_made = {};
  // Rank 0, on another thread: a checkpoint was saved, or failed to be. At the end of the run, on the calling
  // thread: the result of checkpoint.export (SavedCheckpoint.format).
  std::function<void(const v1::SavedCheckpoint&)> on_saved = {};
  std::function<absl::Status(const v1::StepReport&)> on_step = {};
  std::function<absl::Status(const v1::StepTimeline&)> on_timeline = {};  // Rank 0; as in TrainerOptions.
  // All steps are done; other ranks may still be in their last step.
  std::function<absl::Status(Trainer*)> on_trained = {};
  // After the mesh was connected: making the trainer failed, or a later phase did. Called before teardown, so
  // a process may exit without it. Earlier errors are only returned by RunRank().
  std::function<void(const absl::Status&)> on_failed = {};
  // The trainer is about to be destroyed, on success or failure. Called if on_made was.
  std::function<void()> on_leaving = {};
};

absl::Status RunRank(RankRun run);

}  // namespace fsdpd
