#include "fsdp/engine/local_job.h"

#include <ATen/ops/from_blob.h>
#include <absl/strings/str_cat.h>
#include <google/protobuf/util/json_util.h>

#include <atomic>
#include <thread>

#include "base/check.h"
#include "fsdp/comm/local_communicator.h"
#include "fsdp/engine/agreement.h"
#include "fsdp/engine/trainer.h"

namespace fsdpd {
namespace {

InitialValues FromWeights(const Layout& layout, const std::vector<float>& weights) {
  if (weights.empty()) return nullptr;
  return [&layout, &weights](int unit, int param) {
    int64_t begin = 0;
    for (int u = 0; u < unit; ++u) begin += layout.units[u].elements;
    for (int p = 0; p < param; ++p) begin += layout.units[unit].params[p].elements;
    return at::from_blob(const_cast<float*>(weights.data()) + begin,
                         {layout.units[unit].params[param].elements}, at::kFloat);
  };
}

struct RankJob {
  const Plan* plan;
  const std::vector<float>* initial;
  int rank;
  Store* store;
  std::unique_ptr<Communicator> gather;
  std::unique_ptr<Communicator> reduce;
  const std::atomic<bool>* stop;
};

// `weights` gets this rank's pieces; ranks write disjoint elements, or all of them the same.
absl::Status RunRank(RankJob job, std::vector<v1::StepReport>* reports, std::vector<float>* weights) {
  FSDPD_RETURN_IF_ERROR(AgreeOnProgram(job.store, job.rank, static_cast<int>(job.plan->spec.world),
                                       job.plan->program.hash, absl::Minutes(1)));
  TrainerOptions options;
  options.plan = job.plan;
  options.rank = job.rank;
  options.gather = std::move(job.gather);
  options.reduce = std::move(job.reduce);
  options.stop = job.stop;
  options.initial = FromWeights(job.plan->layout, *job.initial);
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Make(std::move(options)));
  FSDPD_RETURN_IF_ERROR(trainer->Run([&](const v1::StepReport& report) {
    reports->push_back(report);
    return absl::OkStatus();
  }));
  if (job.plan->layout.shards > 1 || job.rank == 0) {
    trainer->params().CopyTo(job.plan->layout, trainer->shard(), weights);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> PlanOfJson(const std::string& json) {
  v1::JobSpec job;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &job);
  if (!parsed.ok()) return absl::InvalidArgumentError(parsed.ToString());
  Plan plan = MakePlan(job, /*budget_bytes_per_rank=*/0);
  if (plan.accepted()) return plan;
  std::string faults;
  for (const Violation& fault : plan.faults) absl::StrAppend(&faults, fault.field, ": ", fault.reason, "\n");
  return absl::InvalidArgumentError(faults);
}

absl::StatusOr<LocalJobResult> RunLocalJob(const Plan& plan, const std::vector<float>& weights) {
  const int world = static_cast<int>(plan.spec.world);
  if (!weights.empty() && static_cast<int64_t>(weights.size()) != plan.layout.elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights: ", weights.size(), " values, the model has ", plan.layout.elements()));
  }
  LocalJobResult result;
  result.reports.resize(world);
  result.weights.resize(plan.layout.elements());
  std::vector<absl::Status> statuses(world);
  std::atomic<bool> stop{false};
  LocalStore store;
  auto gather = MakeLocalGroup(world);
  auto reduce = MakeLocalGroup(world);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      statuses[rank] =
          RunRank({&plan, &weights, rank, &store, std::move(gather[rank]), std::move(reduce[rank]), &stop},
                  &result.reports[rank], &result.weights);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const absl::Status& status : statuses) FSDPD_RETURN_IF_ERROR(status);
  return result;
}

}  // namespace fsdpd
