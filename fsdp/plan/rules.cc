#include "fsdp/plan/rules.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <algorithm>

#include "fsdp/plan/rule_table.h"

namespace fsdpd {
namespace {

// "resources" comes before "train": a batch is checked against the ranks.
std::vector<Rule> Table() {
  std::vector<Rule> table;
  for (const auto* part : {&ModelRules(), &RuntimeRules(), &TrainRules()}) {
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

LlamaConfig Facts::model() const { return ToLlama(job.model()); }

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
  const v1::DType compute = job.precision().compute();
  if (compute != v1::DTYPE_UNSPECIFIED) return compute == v1::DTYPE_BF16 ? DType::kBf16 : DType::kFp32;
  return job.resources().device() == v1::DEVICE_CPU ? DType::kFp32 : DType::kBf16;
}

bool Facts::no_shard() const { return job.fsdp().strategy() == v1::STRATEGY_NO_SHARD; }

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
