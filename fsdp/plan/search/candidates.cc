#include "fsdp/plan/search/candidates.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <utility>

#include "fsdp/plan/rules/rules.h"
#include "fsdp/plan/spec/defaults.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {
namespace {

using Jobs = std::vector<v1::JobSpec>;

constexpr char kPipeline[] = "parallel.pipeline", kChunks[] = "parallel.pipeline_chunks",
               kSchedule[] = "parallel.pipeline_schedule";

// Values that every configuration keeps.
struct Fixed {
  int64_t world = 1;
  int64_t ranks_per_node = 1;
  int64_t global_batch = 1;  // Samples.
};

// A dimension of the search space. Default values are left unset, to keep the spec minimal.
struct Dimension {
  const char* field;
  // Variants of a job in which the earlier dimensions are already set.
  Jobs (*variants)(const Fixed& fixed, const v1::JobSpec& job);
};

std::vector<int64_t> DivisorsOf(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t low = 1; low * low <= number; ++low) {
    if (number % low != 0) continue;
    divisors.push_back(low);
    if (low != number / low) divisors.push_back(number / low);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

int64_t TensorOf(const v1::JobSpec& job) { return std::max<int64_t>(job.parallel().tensor(), 1); }
int64_t ContextOf(const v1::JobSpec& job) { return std::max<int64_t>(job.parallel().context(), 1); }
int64_t PipelineOf(const v1::JobSpec& job) { return std::max<int64_t>(job.parallel().pipeline(), 1); }
int64_t Sharing(const v1::JobSpec& job) { return PipelineOf(job) * TensorOf(job) * ContextOf(job); }

// Groups that neither divide a node nor fill whole nodes straddle node boundaries, which is never faster.
bool FitsNodes(const Fixed& fixed, int64_t ranks) {
  return fixed.ranks_per_node % ranks == 0 || ranks % fixed.ranks_per_node == 0;
}

// Sets the number of stages. An explicit stage_units stays only if it has the right length.
v1::JobSpec InStages(v1::JobSpec job, int64_t stages, int64_t chunks) {
  v1::Parallel* parallel = job.mutable_parallel();
  if (parallel->stage_units_size() != stages * chunks) parallel->clear_stage_units();
  parallel->clear_pipeline();
  parallel->clear_pipeline_chunks();
  if (stages == 1) parallel->clear_pipeline_schedule();
  if (stages > 1) parallel->set_pipeline(stages);
  if (chunks > 1) parallel->set_pipeline_chunks(chunks);
  return job;
}

// The error of the rules for this field, if any.
const Violation* RefusalOf(const Violations& violations, const char* field) {
  const auto refuses = [&](const Violation& violation) {
    return violation.level == ViolationLevel::kError && violation.field == field;
  };
  const auto found = std::find_if(violations.begin(), violations.end(), refuses);
  return found == violations.end() ? nullptr : &*found;
}

Violations ViolationsOfStages(const v1::JobSpec& job, int64_t stages) {
  v1::JobSpec bare = InStages(job, stages, 1);
  bare.mutable_fsdp()->clear_outer();
  Violations violations = CheckJob(bare);
  if (WithDefaults(job, nullptr).resources().device() == v1::DEVICE_CUDA) {
    violations.push_back({"parallel_pipeline_not_timed", ViolationLevel::kError, kPipeline,
                          "step-time prediction is not validated for pipeline stages on GPUs",
                          "to use stages, set parallel.pipeline and plan without --search", "", ""});
  }
  return violations;
}

Jobs Pipelines(const Fixed& fixed, const v1::JobSpec& job) {
  Jobs jobs = {InStages(job, 1, 1)};
  const int64_t chunks = std::max<int64_t>(job.parallel().pipeline_chunks(), 1);
  for (const int64_t stages : DivisorsOf(fixed.world)) {
    if (stages == 1 || !FitsNodes(fixed, fixed.world / stages)) continue;
    if (RefusalOf(ViolationsOfStages(job, stages), kPipeline) != nullptr)
      break;  // More stages are rejected too.
    jobs.push_back(InStages(job, stages, chunks));
  }
  return jobs;
}

// Powers of two only: values in between change little.
Jobs Chunks(const Fixed&, const v1::JobSpec& job) {
  const int64_t stages = PipelineOf(job);
  Jobs jobs = {InStages(job, stages, 1)};
  const bool in_turns = job.parallel().pipeline_schedule() != v1::PIPELINE_SCHEDULE_ZERO_BUBBLE;
  for (int64_t chunks = 2; stages > 1 && in_turns; chunks *= 2) {
    jobs.push_back(InStages(job, stages, chunks));
    if (RefusalOf(CheckJob(jobs.back()), kChunks) == nullptr) continue;
    jobs.pop_back();
    break;
  }
  return jobs;
}

Jobs Tensors(const Fixed& fixed, const v1::JobSpec& job) {
  Jobs jobs;
  for (const int64_t tensor : DivisorsOf(fixed.ranks_per_node)) {
    if (fixed.world / PipelineOf(job) % tensor != 0) continue;
    jobs.push_back(job);
    jobs.back().mutable_parallel()->clear_tensor();
    if (tensor > 1) jobs.back().mutable_parallel()->set_tensor(tensor);
  }
  return jobs;
}

Jobs Contexts(const Fixed& fixed, const v1::JobSpec& job) {
  Jobs jobs;
  const int64_t apart = TensorOf(job) * PipelineOf(job);
  if (fixed.world % apart != 0) return jobs;
  for (const int64_t context : DivisorsOf(fixed.world / apart)) {
    if (!FitsNodes(fixed, context * TensorOf(job))) continue;
    jobs.push_back(job);
    jobs.back().mutable_parallel()->clear_context();
    if (context > 1) jobs.back().mutable_parallel()->set_context(context);
  }
  return jobs;
}

// Degrees within a node, plus the one in the spec.
Jobs Experts(const Fixed& fixed, const v1::JobSpec& job) {
  const int64_t written = job.parallel().expert();
  Jobs jobs = {job};
  if (job.has_parallel()) jobs.back().mutable_parallel()->clear_expert();
  const int64_t count = ExpertsOf(job.model());
  if (count == 0 || TensorOf(job) > 1) return jobs;
  std::vector<int64_t> ranks = DivisorsOf(fixed.ranks_per_node);
  if (std::find(ranks.begin(), ranks.end(), written) == ranks.end()) ranks.push_back(written);
  for (const int64_t expert : ranks) {
    if (expert <= 1 || count % expert != 0) continue;
    jobs.push_back(job);
    jobs.back().mutable_parallel()->set_expert(expert);
  }
  return jobs;
}

Jobs Strategies(const Fixed&, const v1::JobSpec& job) {
  Jobs jobs;
  const auto add = [&](v1::Strategy strategy, bool keep_gathered) {
    jobs.push_back(InStrategy(job, strategy));
    jobs.back().mutable_fsdp()->set_keep_gathered(keep_gathered);
  };
  add(v1::STRATEGY_OPTIM_GRADS_PARAMS, false);
  add(v1::STRATEGY_OPTIM_GRADS_PARAMS, true);
  add(v1::STRATEGY_OPTIM_GRADS, false);
  add(v1::STRATEGY_OPTIM, false);
  add(v1::STRATEGY_NO_SHARD, false);
  return jobs;
}

Jobs PipelineSchedules(const Fixed&, const v1::JobSpec& job) {
  Jobs jobs = {job};
  if (PipelineOf(job) == 1) return jobs;
  jobs.push_back(job);
  jobs.back().mutable_parallel()->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
  if (RefusalOf(CheckJob(jobs.back()), kSchedule) != nullptr) jobs.pop_back();
  return jobs;
}

// Replica counts: divisors of the ranks of a stage that do not share a sample.
Jobs Outers(const Fixed& fixed, const v1::JobSpec& job) {
  Jobs jobs = {job};
  jobs.back().mutable_fsdp()->clear_outer();
  if (fixed.world % Sharing(job) != 0) return jobs;
  const int64_t most = fixed.world / Sharing(job);
  for (const int64_t size : DivisorsOf(most)) {
    if (size == 1 || !FitsNodes(fixed, fixed.world / PipelineOf(job) / size)) continue;
    for (const v1::Strategy strategy : {v1::STRATEGY_NO_SHARD, v1::STRATEGY_OPTIM}) {
      jobs.push_back(job);
      jobs.back().mutable_fsdp()->mutable_outer()->set_size(size);
      jobs.back().mutable_fsdp()->mutable_outer()->set_strategy(strategy);
    }
  }
  return jobs;
}

Jobs MicroBatches(const Fixed& fixed, const v1::JobSpec& job) {
  Jobs jobs;
  const int64_t readers = fixed.world / std::min(Sharing(job), fixed.world);
  if (fixed.global_batch % readers != 0) return jobs;
  for (const int64_t size : DivisorsOf(fixed.global_batch / readers)) {
    const int64_t count = fixed.global_batch / readers / size;
    if (size > 1 && count < PipelineOf(job)) break;  // The bubble would exceed the compute time.
    if (job.parallel().pipeline_chunks() > 1 && count % PipelineOf(job) != 0) continue;
    jobs.push_back(job);
    jobs.back().mutable_train()->set_micro_batch(size);
  }
  return jobs;
}

// The last dimension varies fastest, so micro-batch sizes of one configuration are consecutive.
constexpr Dimension kDimensions[] = {
    {kPipeline, Pipelines},
    {kChunks, Chunks},
    {"parallel.tensor", Tensors},
    {"parallel.context", Contexts},
    {"parallel.expert", Experts},
    {"fsdp.strategy", Strategies},
    {kSchedule, PipelineSchedules},
    {"fsdp.outer", Outers},
    {"train.micro_batch", MicroBatches},
};
constexpr size_t kLast = std::size(kDimensions) - 1;
constexpr char kRecompute[] = "fsdp.recompute";

class Walk {
 public:
  Walk(Fixed fixed, const std::vector<std::string>& held,
       const std::function<Visit(const v1::JobSpec&)>& visit, const std::function<bool()>& is_over)
      : fixed_(fixed), held_(held), visit_(visit), is_over_(is_over) {}

  // Returns kStop if the visitor did.
  Visit From(size_t dimension, const v1::JobSpec& job) const {
    if (is_over_ != nullptr && is_over_()) return Visit::kStop;
    if (dimension == std::size(kDimensions)) return visit_(job);
    const Dimension& at = kDimensions[dimension];
    const Jobs jobs = IsHeld(at.field, held_) ? Jobs{job} : at.variants(fixed_, job);
    for (const v1::JobSpec& each : jobs) {
      const Visit visit = From(dimension + 1, each);
      if (visit == Visit::kStop) return visit;
      if (visit == Visit::kSkipLarger && dimension == kLast) break;
    }
    return Visit::kContinue;
  }

 private:
  const Fixed fixed_;
  const std::vector<std::string>& held_;
  const std::function<Visit(const v1::JobSpec&)>& visit_;
  const std::function<bool()>& is_over_;
};

}  // namespace

std::vector<std::string> SearchedFields() {
  std::vector<std::string> fields;
  for (const Dimension& dimension : kDimensions) fields.emplace_back(dimension.field);
  fields.emplace_back(kRecompute);
  return fields;
}

Violations CheckHeld(const std::vector<std::string>& held) {
  if (held.size() > kMaxHeld) {
    return {{"hold_many", ViolationLevel::kError, "hold",
             absl::StrCat("has ", held.size(), " entries; ", kMaxHeld, " is the maximum"),
             "list each field once, or a parent of several", "", ""}};
  }
  Violations violations;
  const std::vector<std::string> fields = SearchedFields();
  for (const std::string& field : held) {
    const auto holds = [&](const std::string& searched) { return IsWithin(searched, field); };
    if (std::any_of(fields.begin(), fields.end(), holds)) continue;
    violations.push_back({"hold_unknown", ViolationLevel::kError, "hold",
                          absl::StrCat("'", field, "' is not a searched field"),
                          absl::StrCat("hold ", absl::StrJoin(fields, ", "), ", or a parent of these"), "",
                          ""});
  }
  return violations;
}

bool IsHeld(const std::string& field, const std::vector<std::string>& held) {
  return std::any_of(held.begin(), held.end(),
                     [&](const std::string& each) { return IsWithin(field, each); });
}

std::optional<Violation> WhyNoStages(const v1::JobSpec& job) {
  const v1::JobSpec filled = WithDefaults(job, nullptr);
  const int64_t world = RanksOf(filled);
  const Fixed fixed{world, filled.resources().ranks_per_node(), 1};
  for (const int64_t stages : DivisorsOf(world)) {
    if (stages == 1 || !FitsNodes(fixed, world / stages)) continue;
    const Violations violations = ViolationsOfStages(job, stages);
    const Violation* refusal = RefusalOf(violations, kPipeline);
    return refusal == nullptr ? std::nullopt : std::optional<Violation>(*refusal);
  }
  return std::nullopt;
}

void VisitCandidates(const v1::JobSpec& job, const std::vector<std::string>& held,
                     const std::function<Visit(const v1::JobSpec&)>& visit,
                     const std::function<bool()>& is_over) {
  const v1::JobSpec filled = WithDefaults(job, nullptr);
  const Fixed fixed{RanksOf(filled), filled.resources().ranks_per_node(), GlobalBatchOf(job)};
  v1::JobSpec open = job;
  open.mutable_train()->set_global_batch(fixed.global_batch);
  if (!IsHeld(kRecompute, held)) {
    open.mutable_fsdp()->clear_recompute();
    open.mutable_fsdp()->clear_recompute_layers();
  }
  if (open.has_parallel() && !IsHeld(kSchedule, held)) open.mutable_parallel()->clear_pipeline_schedule();
  Walk(fixed, held, visit, is_over).From(0, open);
}

Candidate CandidateOf(const v1::JobSpec& job) {
  Candidate candidate{job.parallel(), job.fsdp(), std::nullopt, std::nullopt};
  if (job.train().has_micro_batch()) candidate.micro_batch = job.train().micro_batch();
  if (job.train().has_global_batch()) candidate.global_batch = job.train().global_batch();
  return candidate;
}

v1::JobSpec ApplyCandidate(v1::JobSpec job, const Candidate& candidate) {
  *job.mutable_parallel() = candidate.parallel;
  *job.mutable_fsdp() = candidate.fsdp;
  if (candidate.micro_batch.has_value()) job.mutable_train()->set_micro_batch(*candidate.micro_batch);
  if (candidate.global_batch.has_value()) job.mutable_train()->set_global_batch(*candidate.global_batch);
  return job;
}

}  // namespace fsdpd
