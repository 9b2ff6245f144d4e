// A rank's life, once for all who host ranks (fsdpd-rank, the library, local tools): agree with the others on
// the program, connect, make the trainer, train, leave. What differs between hosts is in the hooks.
//
// Errors: those of agreement.h, comm/mesh.h and trainer.h. Thread safety: one thread a rank.
#pragma once

#include <absl/time/time.h>

#include <functional>
#include <string>

#include "fsdp/engine/trainer.h"

namespace fsdpd {

struct RankRun {
  const Plan* plan = nullptr;
  int rank = 0;
  int device_index = 0;  // CUDA: of this process's GPU; it becomes current.
  Store* store = nullptr;
  absl::Duration timeout = absl::Minutes(5);  // For the others to come.
  std::string bind_address = {};  // Gloo: an address of this host; empty: the communicator's default.
  // Ranks as threads that meet in memory: the mesh, connected already; null: it is connected over the store.
  ConnectedMesh* local = nullptr;
  const std::atomic<bool>* stop = nullptr;  // Null: nobody stops it.
  InitialValues initial = {};               // As these three are in TrainerOptions.
  const UserModel* model = nullptr;
  bool run_ahead_on_cpu = false;

  // All may be empty. Made and not yet run; an error ends the run.
  std::function<absl::Status(Trainer*)> on_made = {};
  std::function<absl::Status(const v1::StepReport&)> on_step = {};
  // A run that failed, before anything is torn down: a process may want to leave without that.
  std::function<void(const absl::Status&)> on_failed = {};
  // All steps are done, and the other ranks may still be in their last.
  std::function<absl::Status(Trainer*)> on_trained = {};
};

absl::Status RunRank(RankRun run);

}  // namespace fsdpd
