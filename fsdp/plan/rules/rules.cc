#include "fsdp/plan/rules/rules.h"

#include <string>
#include <variant>
#include <vector>

#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

// Order of the sections: "resources" and "parallel" before "train", because batches are checked against the
// ranks; "checkpoint" after it, because intervals are checked against the steps; "restart.elastic" last,
// because it checks the whole job at a smaller world size.
const std::vector<Rule>& Table() {
  static const auto* const table = [] {
    auto* all = new std::vector<Rule>();
    for (const absl::Span<const Rule> part :
         {ModelRules(),     LatentRules(),     ExpertsRules(),  PluginRules(),        PackageRules(),
          DataRules(),      RuntimeRules(),    PipelineRules(), ParallelRules(),      TrainRules(),
          LoraRules(),      CheckpointRules(), BadStepRules(),  DeterministicRules(), OffloadRules(),
          OptimizerRules(), PrecisionRules(),  Fp8Rules(),      EnvRules(),           ElasticRules()}) {
      all->insert(all->end(), part.begin(), part.end());
    }
    return all;
  }();
  return *table;
}

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
     "plug-ins and packages need a connected agent of the job's device that allows them", nullptr},
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

Findings FindingsOf(const Rule& rule, const Facts& f) {
  if (const auto* limits = std::get_if<Limits>(&rule.check)) return CheckLimits(f, rule.field, *limits);
  const auto* when = std::get_if<When>(&rule.check);
  if (when == nullptr) return std::get<0>(rule.check)(f);
  if (!when->is_violated(f)) return {};
  return {{when->reason, when->fix, "", when->before, when->after}};
}

}  // namespace

Violations CheckJob(const v1::JobSpec& job, const std::vector<std::string>& unparsed) {
  Violations found;
  std::vector<std::string> open = unparsed;
  // Only the package has the value, and the client has not read it.
  if (job.model().has_package() && job.model().package().digest().empty() &&
      job.data().sequence_length() == 0)
    open.push_back("data.sequence_length");
  const Facts facts(job, open, found);
  for (const Rule& rule : Table()) {
    for (Finding& finding : FindingsOf(rule, facts)) {
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
