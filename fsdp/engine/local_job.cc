#include "fsdp/engine/local_job.h"

#include <ATen/ops/from_blob.h>
#include <absl/strings/str_cat.h>
#include <google/protobuf/util/json_util.h>

#include <atomic>
#include <thread>

#include "base/check.h"
#include "fsdp/engine/agreement.h"
#include "fsdp/engine/trainer.h"
#include "fsdp/plan/program/fingerprint.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

InitialValues FromWeights(const Layout& layout, const std::vector<float>& weights) {
  if (weights.empty()) return nullptr;
  return [&layout, &weights, offsets = SlotOffsets(layout)](int unit, int param, int64_t begin,
                                                            int64_t elements) {
    const ParamPlace place = layout.units[unit].params[param];
    const float* values = weights.data() + offsets[place.bucket][place.slot] + begin;
    return at::from_blob(const_cast<float*>(values), {elements}, at::kFloat);
  };
}

struct RankJob {
  const Plan* plan;
  const LocalJobOptions* options;
  int rank;
  Store* store;
  Mesh mesh;  // CPU; empty on CUDA.
  const std::atomic<bool>* stop;
};

absl::StatusOr<Mesh> MeshOf(RankJob* job) {
  const Spec& spec = job->plan->spec;
  if (spec.device == DeviceKind::kCpu) return std::move(job->mesh);
  FSDPD_RETURN_IF_ERROR(SetCudaDevice(job->rank));
  CommunicatorOptions options;
  options.device = spec.device;
  options.rank = job->rank;
  options.size = static_cast<int>(spec.world);
  options.device_index = job->rank;
  return ConnectMesh(options, static_cast<int>(spec.outer_size), job->store);
}

// One of the ranks that own the same pieces: ranks write disjoint elements of the result.
bool WritesWeights(const Layout& layout, const MeshPosition& position) {
  return (layout.shards > 1 || position.inner_index == 0) &&
         (layout.outer_shards > 1 || position.outer_index == 0);
}

absl::Status RunRank(RankJob job, std::vector<v1::StepReport>* reports, LocalJobResult* result) {
  const Plan& plan = *job.plan;
  FSDPD_RETURN_IF_ERROR(AgreeOnProgram(job.store, job.rank, static_cast<int>(plan.spec.world),
                                       Fingerprint(plan.spec, plan.layout, plan.program), absl::Minutes(1)));
  TrainerOptions options;
  options.plan = &plan;
  FSDPD_ASSIGN_OR_RETURN(options.mesh, MeshOf(&job));
  options.device_index = job.rank;
  options.stop = job.stop;
  options.initial = FromWeights(plan.layout, job.options->weights);
  options.model = job.options->model;
  options.run_ahead_on_cpu = job.options->run_ahead_on_cpu;
  const MeshPosition position = options.mesh.position;
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Make(std::move(options)));
  FSDPD_RETURN_IF_ERROR(trainer->Run([&](const v1::StepReport& report) {
    reports->push_back(report);
    return job.rank == 0 && job.options->on_step ? job.options->on_step(report) : absl::OkStatus();
  }));
  trainer->AwaitOthers();
  result->timelines[job.rank] = trainer->LastTimeline();
  if (WritesWeights(plan.layout, position)) trainer->params().CopyTo(&result->weights);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> PlanOfJson(const std::string& json) {
  v1::JobSpec job;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &job);
  if (!parsed.ok()) return absl::InvalidArgumentError(parsed.ToString());
  return PlanOfJob(job);
}

absl::StatusOr<Plan> PlanOfJob(const v1::JobSpec& job) {
  Plan plan = MakePlan(job, /*budget_bytes_per_rank=*/0);
  if (plan.accepted()) return plan;
  std::string faults;
  for (const Violation& fault : plan.faults) {
    if (fault.level == FaultLevel::kError) absl::StrAppend(&faults, fault.field, ": ", fault.reason, "\n");
  }
  return absl::InvalidArgumentError(faults);
}

absl::StatusOr<LocalJobResult> RunLocalJob(const Plan& plan, const LocalJobOptions& options) {
  const auto world = static_cast<int>(plan.spec.world);
  if (!options.weights.empty() && static_cast<int64_t>(options.weights.size()) != plan.layout.elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights: ", options.weights.size(), " values, the model has ", plan.layout.elements()));
  }
  if (plan.spec.device == DeviceKind::kCuda && world > 1) FSDPD_RETURN_IF_ERROR(CheckGpusMayShareProcess());
  LocalJobResult result;
  result.reports.resize(world);
  result.timelines.resize(world);
  result.weights.resize(plan.layout.elements());
  std::vector<absl::Status> statuses(world);
  const std::atomic<bool> never{false};
  LocalStore store;
  std::vector<Mesh> mesh = MakeLocalMesh(world, static_cast<int>(plan.spec.outer_size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      statuses[rank] = RunRank({&plan, &options, rank, &store, std::move(mesh[rank]),
                                options.stop != nullptr ? options.stop : &never},
                               &result.reports[rank], &result);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  // A rank that fails takes the others with it, as UNAVAILABLE: the cause is among the rest.
  for (const absl::Status& status : statuses) {
    if (!status.ok() && !absl::IsUnavailable(status)) return status;
  }
  for (const absl::Status& status : statuses) FSDPD_RETURN_IF_ERROR(status);
  return result;
}

}  // namespace fsdpd
