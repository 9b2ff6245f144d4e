// Library API: trains a model in a C++ program, a built-in one or the program's own, sharded over ranks and
// without the daemon. Two calls do what the coordinator does for a job:
//
//   1. Plan    PlanJson() turns a job spec (JSON of v1::JobSpec, docs/library.md) and optionally a UserModel
//              into a Plan: all defaults resolved, all violations reported, the step's program compiled and
//              verified. Nothing is allocated.
//   2. Train   TrainThreads() runs all ranks as threads of this process; TrainRank() runs one rank, and other
//              processes, started by any launcher, run the others. Same plan, same program, same numbers.
//
// Ownership: plan, model and stop flag must outlive the call. Thread safety: call TrainRank() from one thread
// per process; a UserModel is called from the ranks' threads (user_model.h).
//
// Errors: INVALID_ARGUMENT lists all violations of a spec, one per line. Training ends with the first rank's
// error, and other ranks get a related one: UNAVAILABLE on ranks that lost a peer, CANCELLED if `stop` was
// set, OUT_OF_RANGE if a step is not finite or a spike and the spec does not skip it (the library does not
// restore a checkpoint; restart the run), FAILED_PRECONDITION if ranks have different plans.
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

// Plans a spec that names a built-in model or a plug-in.
absl::StatusOr<Plan> PlanJson(const std::string& json);

// Plans a spec without `model`, for the program's own model.
absl::StatusOr<Plan> PlanJson(const std::string& json, const UserModel& model);

// A readable summary: what the plan chose for `auto`, and the memory it needs.
std::string PlanText(const Plan& plan);

struct TrainOptions {
  const UserModel* model = nullptr;  // The model that was planned; null for a built-in model or a plug-in.
  // Called after each step, on the training thread (rank 0's in TrainThreads); an error ends the job.
  std::function<absl::Status(const v1::StepReport&)> on_step = {};
  const std::atomic<bool>* stop = nullptr;  // Polled within steps. Null: never stops.
  // Name of the run: a run that is restarted under the same name resumes from its newest checkpoint in the
  // spec's checkpoint.dir. Empty: no checkpoint there is its own, and checkpoint.load determines the start.
  std::string run = {};
  // Called for each checkpoint, including failed ones; on rank 0, from a separate thread.
  std::function<void(const v1::SavedCheckpoint&)> on_saved = {};
};

// All parameters after the last step, fp32, concatenated: units in order, each unit's parameters in its
// order.
using Weights = std::vector<float>;

// Views of `weights` by full name ("layer.0.attention.wq"), in order and in shape.
std::vector<std::pair<std::string, at::Tensor>> ByName(const Plan& plan, Weights* weights);

// Ranks are threads: on a CPU they communicate in memory, with CUDA rank r uses device r and NCCL. `start`:
// initial weights in the same order; empty: the model's own, from the spec's seed.
absl::StatusOr<Weights> TrainThreads(const Plan& plan, const TrainOptions& options = {},
                                     const Weights& start = {});

struct RankOptions {
  int rank = 0;
  int device_index = 0;  // CUDA: this process's GPU. The spec has the number of ranks.
  // A directory that all ranks can access and that no other launch has used. The launcher removes it.
  std::string rendezvous;
  std::string bind_address = "127.0.0.1";  // CPU: an address of this host that other ranks can reach.
  absl::Duration rendezvous_timeout = absl::Minutes(5);
  // Timeout for other ranks' checkpoint file operations, since a killed rank sends nothing. Must exceed the
  // slowest rank's time for its part of a checkpoint.
  absl::Duration file_timeout = absl::Minutes(30);
  bool collect_weights = true;  // On every rank; takes 4 bytes of host memory per parameter.
};

// Rank and device from the environment variables of torchrun and similar launchers: RANK and LOCAL_RANK.
// WORLD_SIZE, if set, must match the plan. INVALID_ARGUMENT names the variable.
absl::StatusOr<RankOptions> RankOptionsOfEnvironment(const Plan& plan);

// Returns when all ranks are done. The weights are empty without collect_weights.
absl::StatusOr<Weights> TrainRank(const Plan& plan, const RankOptions& rank,
                                  const TrainOptions& options = {});

}  // namespace fsdpd
