#include "fsdp/fsdp.h"

#include <ATen/ops/from_blob.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/time/clock.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/check.h"
#include "base/text.h"
#include "fsdp/comm/file_store.h"
#include "fsdp/engine/local_job.h"
#include "fsdp/engine/rank_run.h"
#include "fsdp/torch/cuda_device.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// Plugin path of a model that the program itself provides.
constexpr char kThisProgram[] = "/proc/self/exe";

// Elements per collective when weights are collected; CUDA ranks stage them on the device.
constexpr int64_t kCollectElements = 1 << 24;

absl::Status CheckModel(const Plan& plan, const UserModel* model) {
  FSDPD_CHECK(plan.accepted());
  const auto* plugin = std::get_if<PluginConfig>(&plan.spec.model);
  const bool own = plugin != nullptr && plugin->path == kThisProgram;
  if (own == (model != nullptr)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      own ? "TrainOptions.model: not set, but the plan uses a model of this program"
          : "TrainOptions.model: set, but the plan uses another model");
}

// Writes a value that is unique to this launch, so that a directory of an earlier launch is detected before
// any rank waits.
absl::Status Join(Store* store, int rank) {
  const std::string self = absl::StrCat(getpid(), " at ", absl::GetCurrentTimeNanos());
  const absl::Status status = store->Set(absl::StrCat("rank/", rank), self);
  if (!absl::IsAlreadyExists(status)) return status;
  return absl::AlreadyExistsError(absl::StrFormat(
      "rendezvous: rank %d of an earlier launch used this directory; use a new one for each launch (%s)",
      rank, status.message()));
}

at::Device DeviceOf(const Spec& spec, int device_index) {
  if (spec.device == DeviceKind::kCpu) return at::Device(at::kCPU);
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device_index));
}

// Every rank adds its shards to zeros, which is exact.
absl::StatusOr<Weights> Collect(const Plan& plan, const Trainer& trainer, at::Device device) {
  Weights weights(plan.full_layout().elements());
  FSDPD_RETURN_IF_ERROR(CatchTorch([&] {
    trainer.params().CopyTo(&weights, FirstElements(plan, trainer.mesh().position().rank));
    const auto elements = static_cast<int64_t>(weights.size());
    for (int64_t begin = 0; begin < elements; begin += kCollectElements) {
      const int64_t count = std::min(kCollectElements, elements - begin);
      const at::Tensor host = at::from_blob(weights.data() + begin, {count}, at::kFloat);
      const at::Tensor staged = host.to(device);  // No copy on a CPU.
      FSDPD_RETURN_IF_ERROR(trainer.mesh().all()->AllReduce(staged.mutable_data_ptr<float>(), count));
      if (device.is_cuda()) host.copy_(staged);  // Waits for the collective: same stream.
    }
    return absl::OkStatus();
  }));
  return weights;
}

absl::StatusOr<int> Variable(const char* name) {
  const char* text = std::getenv(name);
  int value = 0;
  if (text != nullptr && absl::SimpleAtoi(text, &value) && value >= 0) return value;
  return absl::InvalidArgumentError(
      text == nullptr
          ? absl::StrCat(name, ": not set; start the program with a launcher such as torchrun")
          : absl::StrCat(name, ": invalid value (got '", text, "', want an integer of at least 0)"));
}

}  // namespace

absl::StatusOr<Plan> PlanJson(const std::string& json) { return PlanOfJson(json); }

absl::StatusOr<Plan> PlanJson(const std::string& json, const UserModel& model) {
  FSDPD_ASSIGN_OR_RETURN(v1::JobSpec job, ReadJob(json));
  if (job.has_model()) {
    return absl::InvalidArgumentError("model: the program provides it; leave it out of the spec");
  }
  FSDPD_RETURN_IF_ERROR(CatchTorch([&] {
    *job.mutable_model()->mutable_plugin() = ToProto(model.Describe());
    return absl::OkStatus();
  }));
  job.mutable_model()->mutable_plugin()->set_path(kThisProgram);
  return AcceptedPlan(job);
}

std::string PlanText(const Plan& plan) {
  std::string text =
      absl::StrFormat("%d parameters over %d ranks, peak %s per rank\n", plan.full_layout().elements(),
                      plan.spec.mesh.world(), HumanBytes(plan.memory.peak_bytes));
  for (const Choice& choice : plan.choices) {
    absl::StrAppendFormat(&text, "%-30s %-20s %s\n", choice.field, choice.value, choice.reason);
  }
  for (const Violation& violation : plan.violations) {  // In an accepted plan: warnings and adjustments.
    absl::StrAppend(&text, violation.field, ": ", violation.reason, "; ", violation.fix, "\n");
  }
  return text;
}

std::vector<std::pair<std::string, at::Tensor>> ByName(const Plan& plan, Weights* weights) {
  FSDPD_CHECK(static_cast<int64_t>(weights->size()) == plan.full_layout().elements());
  std::vector<std::pair<std::string, at::Tensor>> named;
  float* next = weights->data();
  const Layout& layout = plan.full_layout();
  for (const UnitLayout& unit : layout.units) {
    for (const ParamPlace& place : unit.params) {
      const ParamSlot& param = layout.buckets[place.bucket].params[place.slot];
      named.emplace_back(FullName(unit, param),
                         at::from_blob(next, FullShape(param.shape, param.partition), at::kFloat));
      next += param.full_elements();
    }
  }
  return named;
}

absl::StatusOr<Weights> TrainThreads(const Plan& plan, const TrainOptions& options, const Weights& start) {
  FSDPD_RETURN_IF_ERROR(CheckModel(plan, options.model));
  LocalJobOptions job;
  job.weights = start;
  job.model = options.model;
  job.stop = options.stop;
  job.on_step = options.on_step;
  job.label.job = options.run;
  job.on_saved = options.on_saved;
  FSDPD_ASSIGN_OR_RETURN(LocalJobResult result, RunLocalJob(plan, job));
  return std::move(result.weights);
}

absl::StatusOr<RankOptions> RankOptionsOfEnvironment(const Plan& plan) {
  RankOptions options;
  FSDPD_ASSIGN_OR_RETURN(options.rank, Variable("RANK"));
  FSDPD_ASSIGN_OR_RETURN(options.device_index, Variable("LOCAL_RANK"));
  if (std::getenv("WORLD_SIZE") != nullptr) {
    FSDPD_ASSIGN_OR_RETURN(const int world, Variable("WORLD_SIZE"));
    if (world != plan.spec.mesh.world()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "WORLD_SIZE: got %d, want %d (resources: nodes x ranks_per_node)", world, plan.spec.mesh.world()));
    }
  }
  return options;
}

absl::StatusOr<Weights> TrainRank(const Plan& plan, const RankOptions& rank, const TrainOptions& options) {
  FSDPD_RETURN_IF_ERROR(CheckModel(plan, options.model));
  if (rank.rank < 0 || rank.rank >= plan.spec.mesh.world()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rank is %d, but the spec has %d ranks", rank.rank, plan.spec.mesh.world()));
  }
  if (rank.rendezvous.empty()) return absl::InvalidArgumentError("rendezvous: missing directory");
  // Before joining the rendezvous, so that a wrong device index can be fixed and retried.
  if (plan.spec.device == DeviceKind::kCuda) FSDPD_RETURN_IF_ERROR(SetCudaDevice(rank.device_index));
  FSDPD_ASSIGN_OR_RETURN(
      const std::unique_ptr<FileStore> store,
      FileStore::Open(rank.rendezvous, std::max(rank.file_timeout, rank.rendezvous_timeout)));
  FSDPD_RETURN_IF_ERROR(Join(store.get(), rank.rank));
  Weights weights;
  RankRun run;
  run.plan = &plan;
  run.rank = rank.rank;
  run.device_index = rank.device_index;
  run.store = store.get();
  run.timeout = rank.rendezvous_timeout;
  run.bind_address = rank.bind_address;
  run.stop = options.stop;
  run.model = options.model;
  run.on_step = options.on_step;
  run.label.job = options.run;
  run.on_saved = options.on_saved;
  run.on_trained = [&](Trainer* trainer) {
    if (!rank.collect_weights) return absl::OkStatus();
    auto collected = Collect(plan, *trainer, DeviceOf(plan.spec, rank.device_index));
    if (collected.ok()) weights = *std::move(collected);
    return collected.status();
  };
  // Payloads of the status are for agents only.
  if (const absl::Status trained = RunRank(std::move(run)); !trained.ok())
    return absl::Status(trained.code(), trained.message());
  return weights;
}

}  // namespace fsdpd
