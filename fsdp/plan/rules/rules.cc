#include "fsdp/plan/rules/rules.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/dot_dot.h"
#include "base/limits.h"
#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/rules/rule_table.h"
#include "fsdp/plan/spec/global_batch.h"

namespace fsdpd {
namespace {

// Order of the sections: "resources" and "parallel" before "train", because batches are checked against the
// ranks; "checkpoint" after it, because intervals are checked against the steps; "restart.elastic" last,
// because it checks the whole job at a smaller world size.
std::vector<Rule> Table() {
  std::vector<Rule> table;
  for (const auto* part : {&ModelRules(), &LatentRules(), &ExpertsRules(), &PluginRules(), &DataRules(),
                           &RuntimeRules(), &PipelineRules(), &ParallelRules(), &TrainRules(),
                           &CheckpointRules(), &BadStepRules(), &DeterministicRules(), &OffloadRules(),
                           &OptimizerRules(), &PrecisionRules(), &Fp8Rules(), &EnvRules(), &ElasticRules()}) {
    table.insert(table.end(), part->begin(), part->end());
  }
  return table;
}

constexpr ViolationLevel kError = ViolationLevel::kError;
constexpr ViolationLevel kWarn = ViolationLevel::kWarn;

// Violations that are detected outside the table, by the planner or by a coordinator that knows its nodes,
// other jobs and its store. They are printed in brackets and explained like rules. docs/rules.py checks these
// rows against the places that detect them.
constexpr Rule kFoundElsewhere[] = {
    {"memory_over_budget", kError, "resources.memory_budget_bytes",
     "a step's planned memory must fit the memory budget per rank", nullptr},
    {"budget_above_offer", kWarn, "resources.memory_budget_bytes",
     "the memory budget should not exceed the memory that nodes offer", nullptr},
    {"host_memory_over_offer", kError, "fsdp.offload",
     "nodes must have enough host memory for offloaded state, offloaded activations and snapshots", nullptr},
    {"node_selector_meets_nodes", kWarn, "resources.node_selector", "too few ready nodes match node_selector",
     nullptr},
    {"no_node_could_take_it", kWarn, "resources", "the ready nodes could not run the job even if idle",
     nullptr},
    {"plugin_needs_permission", kError, "model.plugin.path",
     "plug-ins need a connected agent of the job's device that allows them", nullptr},
    {"checkpoint_dir_taken", kError, "checkpoint.dir",
     "two unfinished jobs must not save to the same directory", nullptr},
    {"job_fits_store", kError, "spec", "the job with its plan must fit the size limit of the store", nullptr},
    {"unknown_field", kError, "spec", "a field must be known to both client and coordinator", nullptr},
    {"unknown_enum", kError, "spec", "an enum value must be known to the coordinator", nullptr},
    {"parallel_pipeline_not_timed", kError, "parallel.pipeline",
     "a search does not vary pipeline stages on GPUs: their step time is not predicted", nullptr},
    {"hold_many", kError, "spec", "a search supports a limited number of held fields", nullptr},
    {"hold_unknown", kError, "spec", "a search can hold only fields that it varies", nullptr},
    {"search_found_none", kError, "spec", "a search must find a valid configuration within its time limit",
     nullptr},
    {"profile_value", kError, "spec", "numbers of a device profile must be finite and in range", nullptr},
    {"compiler_bug", kError, "spec", "internal error: fsdpd could not plan a spec that its rules accept",
     nullptr},
};

struct Named {
  int64_t layers = 0;
  std::vector<std::string> params;
};

Named Describe(const v1::Model& model) {
  Named named;
  for (const UnitFacts& unit : DescribeModel(ToModelConfig(model), 1, 1, DType::kFp32).units) {
    named.layers += unit.kind == UnitKind::kBlock ? 1 : 0;
    for (const ParamFacts& param : unit.params)
      named.params.push_back(absl::StrCat(unit.name, ".", param.name));
  }
  return named;
}

// Cached, because several rules need it and a search checks thousands of meshes with one model.
const Named& NamedOf(const v1::Model& model) {
  thread_local std::string known;
  thread_local Named named;
  std::string asked = model.SerializeAsString();
  if (asked == known) return named;
  named = Describe(model);
  known = std::move(asked);
  return named;
}

}  // namespace

bool IsWithin(const std::string& field, const std::string& parent) {
  if (!absl::StartsWith(field, parent)) return false;
  return field.size() == parent.size() || field[parent.size()] == '.' || field[parent.size()] == '[';
}

bool Facts::IsValid(const std::vector<std::string>& fields) const {
  for (const std::string& field : fields) {
    const auto is_within = [&](const std::string& fault) { return IsWithin(fault, field); };
    if (IsUnparsed(field) || std::any_of(unparsed_.begin(), unparsed_.end(), is_within)) return false;
    for (const Violation& violation : found_) {
      if (violation.level == ViolationLevel::kError && is_within(violation.field)) return false;
    }
  }
  return true;
}

bool Facts::AllValid() const {
  return unparsed_.empty() && std::none_of(found_.begin(), found_.end(), [](const Violation& violation) {
           return violation.level == ViolationLevel::kError;
         });
}

bool Facts::IsUnparsed(const std::string& field) const {
  return std::any_of(unparsed_.begin(), unparsed_.end(),
                     [&](const std::string& unparsed) { return IsWithin(field, unparsed); });
}

bool Facts::ModelIsKnown() const {
  return job.model().source_case() != v1::Model::SOURCE_NOT_SET && IsValid({"model"});
}

bool Facts::WorldIsKnown() const {
  return IsValid({"resources.nodes", "resources.ranks_per_node"}) && world() <= kMaxWorld;
}

ModelConfig Facts::model() const { return ToModelConfig(job.model()); }

int64_t Facts::layers() const { return NamedOf(job.model()).layers; }

std::vector<std::string> Facts::param_names() const { return NamedOf(job.model()).params; }

int64_t Facts::world() const { return job.resources().nodes() * job.resources().ranks_per_node(); }

// An outer size above the number of ranks is reported by another rule, which is skipped if fsdp.outer is
// invalid.
int64_t Facts::data_ranks() const {
  const v1::Parallel& parallel = job.parallel();
  return std::max<int64_t>(1, world() / (parallel.pipeline() * parallel.context() * parallel.tensor()));
}

int64_t Facts::global_batch() const { return GlobalBatchOf(job); }

DType Facts::compute() const {
  switch (job.precision().compute()) {
    case v1::DTYPE_BF16:
    case v1::DTYPE_FP8:
      return DType::kBf16;
    case v1::DTYPE_FP16:
      return DType::kFp16;
    default:
      return DType::kFp32;
  }
}

v1::Strategy Facts::strategy() const { return job.fsdp().strategy(); }

bool Facts::shards_grads() const {
  return strategy() == v1::STRATEGY_OPTIM_GRADS || strategy() == v1::STRATEGY_OPTIM_GRADS_PARAMS;
}

int64_t Facts::replica_ranks() const {
  return world() / outer_size() / (IsValid({"parallel.pipeline"}) ? job.parallel().pipeline() : 1);
}

int64_t Facts::outer_size() const { return std::max<int64_t>(1, job.fsdp().outer().size()); }

Findings NotNegative(double value, const char* name, const char* fix) {
  if (std::isfinite(value) && value >= 0) return {};
  return {{absl::StrCat(name, " is ", value, " and must be 0 or a positive, finite number"), fix}};
}

Findings Positive(double value, const char* name, const std::string& fix) {
  if (std::isfinite(value) && value > 0) return {};
  return {{absl::StrCat(name, " is ", value, " and must be a positive, finite number"), fix}};
}

Findings Between(int64_t value, int64_t most, const char* name, const std::string& fix) {
  if (value >= 1 && value <= most) return {};
  return {{absl::StrCat(name, " is ", value, " and must be between 1 and ", most), fix}};
}

Findings CheckPath(const std::string& path) {
  if (path.empty()) return {};
  if (path[0] != '/') {
    return {
        {absl::StrCat("'", path,
                      "' is a relative path (want an absolute one: each rank has its own working directory)"),
         absl::StrCat("write the whole path, /.../", path, " (fsdpctl does this automatically)")}};
  }
  if (!HasDotDot(path)) return {};
  return {{absl::StrCat("'", path, "' contains .. (links can resolve it differently on each node)"),
           "write the path without .."}};
}

Findings Missing(const char* name, const std::string& fix) {
  return {{absl::StrCat(name, " is missing, and it has no default"), fix}};
}

Violations CheckJob(const v1::JobSpec& job, const std::vector<std::string>& unparsed) {
  Violations found;
  const Facts facts(job, unparsed, found);
  for (const Rule& rule : Table()) {
    for (Finding& finding : rule.check(facts)) {
      const std::string field = finding.field.empty() ? rule.field : finding.field;
      if (facts.IsUnparsed(field)) continue;
      found.push_back(
          {rule.id, rule.level, field, finding.reason, finding.fix, finding.before, finding.after});
    }
  }
  return found;
}

std::vector<RuleText> AllRules() {
  std::vector<RuleText> texts;
  for (const Rule& rule : Table()) texts.push_back({rule.id, rule.text, rule.level, rule.field});
  for (const Rule& rule : kFoundElsewhere) texts.push_back({rule.id, rule.text, rule.level, rule.field});
  return texts;
}

}  // namespace fsdpd
