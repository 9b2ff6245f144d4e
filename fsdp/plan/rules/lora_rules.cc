// Rules of train.lora: its fields, and what it does not support.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <string>

#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/lora_facts.h"
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

bool HasLora(const Facts& f) { return f.job.train().has_lora(); }

// A pattern that matches no matrix is a typo, or names a parameter that cannot have an adapter.
Findings ChecksTargets(const Facts& f) {
  if (!HasLora(f) || !f.llama().has_value()) return {};
  const ModelFacts model = DescribeModel(f.model(), 1, 1, DType::kFp32);
  Findings findings;
  for (int i = 0; i < f.job.train().lora().targets_size(); ++i) {
    const std::string& pattern = f.job.train().lora().targets(i);
    std::string other;  // A parameter that matches and cannot have an adapter.
    bool found = false;
    for (const UnitFacts& unit : model.units) {
      for (const ParamFacts& param : unit.params) {
        const std::string name = FullName(unit, param);
        if (!MatchesPattern(name, pattern)) continue;
        if (TakesAdapter(unit, param)) {
          found = true;
        } else {
          other = name;
        }
      }
    }
    if (found) continue;
    findings.push_back({other.empty()
                            ? absl::StrCat("'", pattern, "' matches no parameter")
                            : absl::StrCat("'", pattern, "' matches ", other,
                                           " and no matrix that can have an adapter: embedding, head, norms, "
                                           "routers and experts cannot"),
                        "write names or patterns such as *.attention.* and *.ffn.w2",
                        absl::StrCat("train.lora.targets[", i, "]")});
  }
  return findings;
}

const Rule kRules[] = {
    {"lora_rank_range", kError, "train.lora.rank", "lora.rank must be from 1 to 1024",
     Limits{1, 1024, "write the rank of the adapters, for example rank: 16", /*required=*/true}},
    {"lora_alpha_positive", kError, "train.lora.alpha", "lora.alpha must be above 0",
     Positive("omit it (default: 2 x rank)")},
    {"lora_needs_llama", kError, "train.lora", "LoRA is not supported with gpt2, plug-ins and packages",
     When{[](const Facts& f) { return HasLora(f) && f.HasOtherFamily(); },
          "only models of the Llama family have adapters",
          "leave train.lora out, or train a Llama-family model"}},
    {"lora_targets_match", kError, "train.lora.targets",
     "each pattern must match a matrix that can have an adapter", ChecksTargets},
    {"lora_without_frozen", kError, "train.frozen", "train.frozen is not supported with LoRA",
     When{[](const Facts& f) { return HasLora(f) && f.job.train().frozen_size() > 0; },
          "LoRA freezes all weights of the model",
          "leave train.frozen out; train.lora.targets selects matrices"}},
    {"lora_without_fp8", kError, "precision.compute", "FP8 is not supported with LoRA",
     When{[](const Facts& f) { return HasLora(f) && f.job.precision().compute() == v1::DTYPE_FP8; },
          "adapters are added to products in bf16", "write compute: bf16"}},
    {"lora_without_zero_bubble", kError, "parallel.pipeline_schedule",
     "the zero_bubble schedule is not supported with LoRA",
     When{[](const Facts& f) {
            return HasLora(f) && f.job.parallel().pipeline_schedule() == v1::PIPELINE_SCHEDULE_ZERO_BUBBLE;
          },
          "frozen weights have no weight gradients that could fill the bubble",
          "write pipeline_schedule: 1f1b"}},
    {"lora_base_model_path", kError, "train.lora.base_model",
     "lora.base_model must be an absolute path without ..",
     [](const Facts& f) -> Findings {
       const std::string& path = f.job.train().lora().base_model();
       return path.empty() ? Findings() : CheckPath(path);
     }},
    {"peft_needs_lora", kError, "checkpoint.export", "export: peft requires train.lora",
     When{[](const Facts& f) { return !HasLora(f) && f.job.checkpoint().export_() == "peft"; },
          "the job has no adapters", "write export: hf, or leave it out"}},
    {"lora_exports_no_hf", kError, "checkpoint.export", "export: hf is not supported with LoRA",
     When{[](const Facts& f) { return HasLora(f) && f.job.checkpoint().export_() == "hf"; },
          "a checkpoint has only the adapters", "write export: peft, or leave it out"}},
};

}  // namespace

absl::Span<const Rule> LoraRules() { return kRules; }

}  // namespace fsdpd
