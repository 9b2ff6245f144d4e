// A rank's life, once for all who host ranks (fsdpd-rank, the library, local tools): agree with the others on
// the program and on what to start from, connect, make the trainer, train, leave. What differs between hosts
// is in the hooks, which run on the calling thread.
//
// REQUIRES: plan, store, model, flight, departure, clock and stop outlive the call; the store is needed for
// ranks as threads, too. The trainer lives within the call: who keeps a pointer to it drops that in
// on_leaving.
//
// Errors: those of agreement.h, comm/mesh.h and trainer.h, and the hooks'. After any, the communicators are
// aborted, so that no other rank waits for this one. Thread safety: one thread a rank.
#pragma once

#include <absl/time/time.h>

#include <atomic>
#include <functional>
#include <string>

#include "fsdp/comm/mesh.h"
#include "fsdp/comm/store.h"
#include "fsdp/engine/trainer.h"

namespace fsdpd {

struct RankRun {
  const Plan* plan = nullptr;
  int rank = 0;
  int device_index = 0;  // CUDA: of this process's GPU; it becomes current.
  Store* store = nullptr;
  bool store_may_be_away = false;             // As in Saver::Options.
  absl::Duration timeout = absl::Minutes(5);  // For the others to come.
  std::string bind_address = {};  // CPU: an address of this host; empty: the communicator's default.
  // Ranks as threads that meet in memory: the mesh, connected already, which is moved from; null: it is
  // connected over the store.
  ConnectedMesh* local = nullptr;
  const std::atomic<bool>* stop = nullptr;  // Null: nobody stops it.
  const Departure* departure = nullptr;     // As these nine are in TrainerOptions.
  Clock* clock = Clock::Real();
  InitialValues initial = {};
  const UserModel* model = nullptr;
  StepTraces* traces = nullptr;
  FlightRecorder* flight = nullptr;
  bool run_ahead_on_cpu = false;
  bool alone = false;
  std::vector<SampleRange> passed_over = {};
  // Whose checkpoints are written, and whose are the job's own (checkpoint_choice.h).
  JobLabel label = {};
  int64_t known_step = 0;  // As in ChooseCheckpoint().

  // All may be empty. Made and not yet run; what it starts from, null where it starts fresh.
  std::function<absl::Status(Trainer*, const v1::RestoredCheckpoint*)> on_made = {};
  // Rank 0, from another thread: of each checkpoint, also of one that could not be written. At the end, on
  // the calling thread, of what checkpoint.export made (SavedCheckpoint.format).
  std::function<void(const v1::SavedCheckpoint&)> on_saved = {};
  std::function<absl::Status(const v1::StepReport&)> on_step = {};
  std::function<absl::Status(const v1::StepCourse&)> on_course = {};  // Rank 0, as TrainerOptions'.
  // All steps are done, and the other ranks may still be in their last.
  std::function<absl::Status(Trainer*)> on_trained = {};
  // The groups are connected, and the trainer could not be made or what came after on_made failed; nothing is
  // torn down: a process may want to leave without that. What fails before is what RunRank() returns.
  std::function<void(const absl::Status&)> on_failed = {};
  // The trainer goes next, whatever happened since on_made.
  std::function<void()> on_leaving = {};
};

absl::Status RunRank(RankRun run);

}  // namespace fsdpd
