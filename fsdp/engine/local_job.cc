#include "fsdp/engine/local_job.h"

#include <ATen/ops/from_blob.h>
#include <absl/strings/str_cat.h>
#include <google/protobuf/util/json_util.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/check.h"
#include "base/errno_status.h"
#include "fsdp/engine/rank_run.h"
#include "fsdp/package/package_file.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

// Weights cover the whole model, while unit indexes are local to the rank's stage.
InitialValues FromWeights(const Plan& plan, int rank, const std::vector<float>& weights) {
  if (weights.empty()) return nullptr;
  return [&weights, first = FirstElements(plan, rank)](int unit, int param, int64_t begin, int64_t elements) {
    const float* values = weights.data() + first[unit][param] + begin;
    return at::from_blob(const_cast<float*>(values), {elements}, at::kFloat);
  };
}

RankRun RunOf(const Plan& plan, const LocalJobOptions& options, const std::string& package_dir, int rank,
              Store* store, LocalJobResult* result) {
  RankRun run;
  run.plan = &plan;
  run.rank = run.device_index = rank;
  run.store = store;
  run.stop = options.stop;
  if (!options.departures.empty()) run.departure = options.departures[rank];
  if (!options.traces.empty()) run.traces = options.traces[rank];
  run.clock = options.clock;
  run.initial = FromWeights(plan, rank, options.weights);
  run.model = options.model;
  run.package_dir = package_dir;
  run.run_ahead_on_cpu = options.run_ahead_on_cpu;
  run.skipped_samples = options.skipped_samples;
  run.on_step = [&options, rank, result](const v1::StepReport& report) {
    result->reports[rank].push_back(report);
    if (options.on_rank_step) options.on_rank_step(rank, report);
    return rank == 0 && options.on_step ? options.on_step(report) : absl::OkStatus();
  };
  run.on_timeline = options.on_timeline;
  run.label = options.label;
  run.on_saved = [&options, result](const v1::SavedCheckpoint& saved) {
    result->saved.push_back(saved);
    if (options.on_saved) options.on_saved(saved);
  };
  run.on_made = [rank, result](Trainer*, const v1::RestoredCheckpoint* restored) {
    if (rank == 0 && restored != nullptr) result->restored = *restored;
    return absl::OkStatus();
  };
  run.on_trained = [rank, result, first = FirstElements(plan, rank)](Trainer* trainer) {
    result->timelines[rank] = trainer->LastTimeline();
    trainer->params().CopyTo(&result->weights, first);  // Ranks write disjoint elements.
    return absl::OkStatus();
  };
  return run;
}

// Directory for the model's package, removed at the end.
class PackageDirectory {
 public:
  ~PackageDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  absl::Status Make() {
    std::string path = std::filesystem::temp_directory_path() / "fsdpd-package.XXXXXX";
    if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(path);
    path_ = std::move(path);
    return absl::OkStatus();
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

absl::StatusOr<v1::JobSpec> ReadJob(const std::string& json) {
  v1::JobSpec job;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &job);
  if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat("job spec: ", parsed.ToString()));
  if (job.train().has_epochs())
    return absl::InvalidArgumentError("train.epochs: only a daemon's ranks compute steps; write train.steps");
  if (job.model().has_package() && job.model().package().digest().empty()) {
    FSDPD_ASSIGN_OR_RETURN(const v1::PackageManifest manifest, ReadPackage(job.model().package().path()));
    *job.mutable_model()->mutable_package() = manifest.model();
  }
  return job;
}

absl::StatusOr<Plan> PlanOfJson(const std::string& json) {
  FSDPD_ASSIGN_OR_RETURN(const v1::JobSpec job, ReadJob(json));
  return AcceptedPlan(job);
}

absl::StatusOr<LocalJobResult> RunLocalJob(const Plan& plan, const LocalJobOptions& options) {
  const auto world = static_cast<int>(plan.spec.mesh.world());
  const int64_t elements = plan.full_layout().elements();
  if (!options.weights.empty() && static_cast<int64_t>(options.weights.size()) != elements) {
    return absl::InvalidArgumentError(absl::StrCat("weights: wrong number of values (got ",
                                                   options.weights.size(), ", want ", elements, ")"));
  }
  if (plan.spec.device == DeviceKind::kCuda && world > 1) FSDPD_RETURN_IF_ERROR(CheckGpusMayShareProcess());
  PackageDirectory package;
  if (std::holds_alternative<PackageConfig>(plan.spec.model)) FSDPD_RETURN_IF_ERROR(package.Make());
  LocalJobResult result;
  result.reports.resize(world);
  result.timelines.resize(world);
  result.weights.resize(elements);
  std::vector<absl::Status> statuses(world);
  LocalStore store;
  const bool in_memory = plan.spec.device == DeviceKind::kCpu;
  std::vector<ConnectedMesh> mesh;
  if (in_memory) mesh = MakeLocalMesh(plan.spec.mesh, plan.full_layout().exchanged_groups());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      RankRun run = RunOf(plan, options, package.path(), rank, &store, &result);
      if (in_memory) run.local = &mesh[rank];
      statuses[rank] = RunRank(std::move(run));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  // Ranks that fail because another one did return UNAVAILABLE: prefer any other error.
  for (const absl::Status& status : statuses) {
    if (!status.ok() && !absl::IsUnavailable(status)) return status;
  }
  for (const absl::Status& status : statuses) FSDPD_RETURN_IF_ERROR(status);
  return result;
}

}  // namespace fsdpd
