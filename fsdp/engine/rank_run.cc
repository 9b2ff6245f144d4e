#include "fsdp/engine/rank_run.h"

#include <utility>

#include "base/check.h"
#include "fsdp/engine/agreement.h"
#include "fsdp/plan/program/fingerprint.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

absl::StatusOr<ConnectedMesh> Connect(const RankRun& run) {
  if (run.local != nullptr) return std::move(*run.local);
  const Spec& spec = run.plan->spec;
  CommunicatorOptions options;
  options.device = spec.device;
  options.rank = run.rank;
  options.size = static_cast<int>(spec.mesh.world());
  options.device_index = run.device_index;
  options.rendezvous_timeout = run.timeout;
  if (!run.bind_address.empty()) options.bind_address = run.bind_address;
  return ConnectMesh(options, spec.mesh, run.store);
}

}  // namespace

absl::Status RunRank(RankRun run) {
  const Plan& plan = *run.plan;
  if (plan.spec.device == DeviceKind::kCuda) FSDPD_RETURN_IF_ERROR(SetCudaDevice(run.device_index));
  FSDPD_RETURN_IF_ERROR(AgreeOnProgram(run.store, run.rank, static_cast<int>(plan.spec.mesh.world()),
                                       Fingerprint(plan.spec, plan.layout, plan.program), run.timeout));
  const std::atomic<bool> never{false};
  TrainerOptions options;
  options.plan = &plan;
  FSDPD_ASSIGN_OR_RETURN(options.mesh, Connect(run));
  options.device_index = run.device_index;
  options.stop = run.stop != nullptr ? run.stop : &never;
  options.initial = std::move(run.initial);
  options.model = run.model;
  options.run_ahead_on_cpu = run.run_ahead_on_cpu;
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Make(std::move(options)));
  if (run.on_made) FSDPD_RETURN_IF_ERROR(run.on_made(trainer.get()));
  const absl::Status status = trainer->Run(
      [&](const v1::StepReport& report) { return run.on_step ? run.on_step(report) : absl::OkStatus(); });
  if (!status.ok() && run.on_failed) run.on_failed(status);
  FSDPD_RETURN_IF_ERROR(status);
  if (run.on_trained) FSDPD_RETURN_IF_ERROR(run.on_trained(trainer.get()));
  trainer->AwaitOthers();  // They may still read what this rank sent last.
  return absl::OkStatus();
}

}  // namespace fsdpd
