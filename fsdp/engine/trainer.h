// One rank of one job, from an accepted plan to its last step: owns the sharded parameters, the units, the
// arena and the executor, feeds batches, and reports each step.
//
// Call order: Make (allocates and initialises; no communication), Run (all steps). Communicators come from
// the caller, so ranks are processes over Gloo or NCCL in a job and threads over local memory in a test.
// Callers make sure beforehand that all ranks have the same program (agreement.h). REQUIRES: plan.accepted();
// the plan and `stop` outlive the trainer; device kCuda only where CUDA is available, with the rank's device
// current. Thread safety: one thread, except Abort. Errors of Run: CANCELLED when `stop` was set;
// OUT_OF_RANGE naming the step when loss or gradient norm is not finite; those of data, communication and
// device with their place. The communicators are aborted after any error: the other ranks learn of it at
// their next collective.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <functional>
#include <memory>

#include "fsdp/comm/communicator.h"
#include "fsdp/engine/executor.h"
#include "fsdp/memory/spike_detector.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

struct TrainerOptions {
  const Plan* plan = nullptr;
  int rank = 0;
  int device_index = 0;
  std::unique_ptr<Communicator> gather;     // For parameters.
  std::unique_ptr<Communicator> reduce;     // For gradients; not the same, since one communicator serialises.
  const std::atomic<bool>* stop = nullptr;  // Polled between instructions.
  InitialValues initial;                    // Empty: the model's own, from the spec's seed.
};

class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(TrainerOptions options);

  // Calls `on_step` after each step on this thread; an error from it ends the run.
  absl::Status Run(const std::function<absl::Status(const v1::StepReport&)>& on_step);

  // After Run, before the process exits: others may still read what this rank sent last. Best effort.
  void AwaitOthers();

  // Wakes the lanes from collectives whose peers are gone; Run then fails. Any thread.
  void Abort();

  const ShardedParams& params() const { return params_; }
  int64_t shard() const;

 private:
  explicit Trainer(TrainerOptions options, Batches batches, Arena arena, ShardedParams params);

  absl::StatusOr<std::vector<Batch>> ReadBatches(int64_t step) const;
  absl::StatusOr<v1::StepReport> Step(int64_t step);
  v1::StepReport Report(int64_t step, double learning_rate, const Operations::StepResult& result);
  void ReportMemory(v1::MemoryReport* report);

  const Spec& spec() const { return options_.plan->spec; }

  const TrainerOptions options_;
  const Batches batches_;
  const Arena arena_;
  ShardedParams params_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::unique_ptr<Executor> executor_;
  absl::StatusOr<std::vector<Batch>> next_batches_;  // Read while the step before ran.
  SpikeDetector spikes_;
};

}  // namespace fsdpd
