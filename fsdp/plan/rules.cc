#include "fsdp/plan/rules.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>

#include "fsdp/plan/model_facts.h"
#include "fsdp/plan/rule_table.h"

namespace fsdpd {
namespace {

// "resources" comes before "train": a batch is checked against the ranks.
std::vector<Rule> Table() {
  std::vector<Rule> table;
  for (const auto* part : {&ModelRules(), &PluginRules(), &DataRules(), &RuntimeRules(), &TrainRules(),
                           &OptimizerRules(), &PrecisionRules()}) {
    table.insert(table.end(), part->begin(), part->end());
  }
  return table;
}

bool IsWithin(const std::string& field, const std::string& parent) {
  if (!absl::StartsWith(field, parent)) return false;
  return field.size() == parent.size() || field[parent.size()] == '.' || field[parent.size()] == '[';
}

}  // namespace

bool Facts::Sound(const std::vector<std::string>& fields) const {
  for (const Violation& violation : found_) {
    if (violation.level != FaultLevel::kError) continue;
    for (const std::string& field : fields) {
      if (IsWithin(violation.field, field)) return false;
    }
  }
  return true;
}

bool Facts::ModelIsKnown() const {
  return job.model().source_case() != v1::Model::SOURCE_NOT_SET && Sound({"model"});
}

ModelConfig Facts::model() const { return ToModelConfig(job.model()); }

int64_t Facts::layers() const {
  const ModelFacts facts = DescribeModel(model(), 1, 1, DType::kFp32);
  return std::count_if(facts.units.begin(), facts.units.end(),
                       [](const UnitFacts& unit) { return unit.kind == UnitKind::kBlock; });
}

std::vector<std::string> Facts::param_names() const {
  std::vector<std::string> names;
  for (const UnitFacts& unit : DescribeModel(model(), 1, 1, DType::kFp32).units) {
    for (const ParamFacts& param : unit.params) names.push_back(absl::StrCat(unit.name, ".", param.name));
  }
  return names;
}

int64_t Facts::world() const {
  const v1::Resources& resources = job.resources();
  return std::max<int64_t>(1, resources.nodes()) * std::max<int64_t>(1, resources.ranks_per_node());
}

int64_t Facts::micro_batch() const { return std::max<int64_t>(1, job.train().micro_batch()); }

int64_t Facts::global_batch() const {
  const int64_t batch = job.train().global_batch();
  return batch == 0 ? micro_batch() * world() : batch;
}

DType Facts::compute() const {
  switch (job.precision().compute()) {
    case v1::DTYPE_FP32:
      return DType::kFp32;
    case v1::DTYPE_BF16:
      return DType::kBf16;
    case v1::DTYPE_FP16:
      return DType::kFp16;
    default:
      return job.resources().device() == v1::DEVICE_CPU ? DType::kFp32 : DType::kBf16;
  }
}

v1::Strategy Facts::strategy() const {
  const v1::Strategy strategy = job.fsdp().strategy();
  return strategy == v1::STRATEGY_UNSPECIFIED ? v1::STRATEGY_OPTIM_GRADS_PARAMS : strategy;
}

bool Facts::shards_grads() const {
  return strategy() == v1::STRATEGY_OPTIM_GRADS || strategy() == v1::STRATEGY_OPTIM_GRADS_PARAMS;
}

int64_t Facts::outer_size() const { return std::max<int64_t>(1, job.fsdp().outer().size()); }

Findings NotNegative(double value, const char* name, const char* fix) {
  if (std::isfinite(value) && value >= 0) return {};
  return {{absl::StrCat(name, " is ", value, " and must be 0 or a positive, finite number"), fix}};
}

Violations CheckJob(const v1::JobSpec& job) {
  Violations found;
  const Facts facts(job, found);
  for (const Rule& rule : Table()) {
    for (Finding& finding : rule.check(facts)) {
      found.push_back({rule.id, rule.level, finding.field.empty() ? rule.field : finding.field,
                       finding.reason, finding.fix, finding.before, finding.after});
    }
  }
  return found;
}

std::vector<RuleText> AllRules() {
  std::vector<RuleText> texts;
  for (const Rule& rule : Table()) texts.push_back({rule.id, rule.text});
  texts.push_back({"memory_over_budget", "a step's planned memory fits the budget per rank"});
  return texts;
}

}  // namespace fsdpd
