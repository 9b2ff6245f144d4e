// The engine as a library: a C++ program trains a model, its own or a built-in one, sharded over ranks and
// without the daemon. What the coordinator does for a job happens here in two calls:
//
//   1. Plan    PlanJson() turns a job spec (JSON of v1::JobSpec, docs/library.md) and, for a model of the
//              program's own, a UserModel into a Plan: every default resolved, every fault found, the step's
//              program compiled and verified. Nothing is allocated.
//   2. Train   TrainThreads() runs all ranks as threads of this process; TrainRank() runs one rank, and the
//              other processes, started by any launcher, run theirs. Same plan, same program, same numbers.
//
// Ownership: plan, model and stop flag outlive the call. Thread safety: TrainRank() is for one thread a
// process; a UserModel is called from the ranks' threads (user_model.h).
//
// Errors: INVALID_ARGUMENT lists every fault of a spec, one a line. Training ends with the first rank's
// error, of which the others learn: UNAVAILABLE on those that lost a peer, CANCELLED when `stop` was set,
// OUT_OF_RANGE when a step is not finite or a spike, and the spec does not have it skipped (nobody goes back
// to a checkpoint here: who starts the run again does), FAILED_PRECONDITION when ranks have different plans.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/model/autograd/autograd_unit.h"
#include "fsdp/model/autograd/module_unit.h"
#include "fsdp/model/user_model.h"
#include "fsdp/plan/plan.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

// The plan of a spec that names a built-in model, or a plug-in.
absl::StatusOr<Plan> PlanJson(const std::string& json);

// The plan of a spec without `model`, for a model of the program's own.
absl::StatusOr<Plan> PlanJson(const std::string& json, const UserModel& model);

// What the plan chose where the spec left it open, and the memory it needs, for people to read.
std::string PlanText(const Plan& plan);

struct TrainOptions {
  const UserModel* model = nullptr;  // The one that was planned; null for a built-in model or a plug-in.
  // After each step, on the thread that trains (rank 0's of TrainThreads); an error ends the job.
  std::function<absl::Status(const v1::StepReport&)> on_step = {};
  const std::atomic<bool>* stop = nullptr;  // Polled within steps. Null: nobody stops it.
  // Whose checkpoints are the run's own: one that is started again under its name goes on from the newest of
  // them in the spec's checkpoint.dir. Empty: none there is its own, and checkpoint.load says what to take.
  std::string run = {};
  // Of each checkpoint, also of one that could not be written; on rank 0, from a thread of its own.
  std::function<void(const v1::SavedCheckpoint&)> on_saved = {};
};

// All parameters after the last step, fp32, in one row: units in order, each unit's parameters in its order.
using Weights = std::vector<float>;

// The parts of `weights` by full name ("layer.0.attention.wq"), in order: views of it, in shape.
std::vector<std::pair<std::string, at::Tensor>> ByName(const Plan& plan, Weights* weights);

// Ranks are threads: on CPU they meet in memory, on CUDA rank r has device r and they meet over NCCL.
// `start`: weights to begin with, in the same order; empty: the model's own, from the spec's seed.
absl::StatusOr<Weights> TrainThreads(const Plan& plan, const TrainOptions& options = {},
                                     const Weights& start = {});

struct RankOptions {
  int rank = 0;
  int device_index = 0;  // CUDA: of this process's GPU. The spec says how many ranks there are.
  // A directory that all ranks see and that no other launch has used. Whoever launches removes it.
  std::string rendezvous;
  std::string bind_address = "127.0.0.1";  // CPU: an address of this host that the other ranks reach.
  absl::Duration rendezvous_timeout = absl::Minutes(5);
  // For what another rank says of files that it reads or writes, of checkpoints: one that was killed says
  // nothing. Above the time that the slowest rank takes for its part of one.
  absl::Duration file_timeout = absl::Minutes(30);
  bool collect_weights = true;  // On every rank: 4 bytes of host memory for each parameter.
};

// Rank and device from what torchrun, and launchers like it, put into the environment: RANK and LOCAL_RANK.
// WORLD_SIZE, where set, must be the plan's. INVALID_ARGUMENT names the variable.
absl::StatusOr<RankOptions> RankOptionsOfEnvironment(const Plan& plan);

// The weights are empty without collect_weights. Returns when all ranks are done.
absl::StatusOr<Weights> TrainRank(const Plan& plan, const RankOptions& rank,
                                  const TrainOptions& options = {});

}  // namespace fsdpd
