// Rules of train.lora: its fields, and what it does not support.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "fsdp/checkpoint/names/adapter_names.h"
#include "fsdp/kernels/nf4/nf4_format.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/lora_facts.h"
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

bool HasLora(const Facts& f) { return f.job.train().has_lora(); }

constexpr size_t kMaxSuggestions = 12;  // As many as a model has kinds of matrices with adapters.
// Measured with a small model: at a learning rate of 2e-4, steps overflow at every loss scale down to 1 with
// a scale of 4096, and not with 2048; at 2e-3, with 1024.
constexpr double kMaxFp16Scale = 1024;
constexpr char kPeftAllLinear[] = "all-linear";

// Modules of model families that name or fuse their matrices in another way than Llama: GPT-2, GPT-NeoX,
// Falcon, Phi, OPT and Qwen 1.
struct ForeignModule {
  const char* theirs;
  std::vector<const char*> ours;
};
const ForeignModule kForeignModules[] = {
    {"query_key_value", {"wq", "wk", "wv"}},
    {"qkv_proj", {"wq", "wk", "wv"}},
    {"Wqkv", {"wq", "wk", "wv"}},
    {"W_pack", {"wq", "wk", "wv"}},
    {"c_attn", {"wq", "wk", "wv"}},
    {"query", {"wq"}},
    {"key", {"wk"}},
    {"value", {"wv"}},
    {"dense", {"wo"}},
    {"out_proj", {"wo"}},
    {"c_proj", {"wo", "w2"}},
    {"gate_up_proj", {"w1", "w3"}},
    {"c_fc", {"w1", "w3"}},
    {"fc1", {"w1", "w3"}},
    {"fc_in", {"w1", "w3"}},
    {"dense_h_to_4h", {"w1", "w3"}},
    {"fc2", {"w2"}},
    {"fc_out", {"w2"}},
    {"dense_4h_to_h", {"w2"}},
};

std::string LastPart(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Whether a pattern that is not one of ours can mean this parameter: by the end of its name ("wq"), by its
// module in transformers, as in PEFT's target_modules ("q_proj"), or by that of another family ("c_attn").
bool IsMeant(const std::string& pattern, const std::string& name, const std::string& module) {
  const std::string end = absl::StrCat("*.", pattern);
  for (const ForeignModule& foreign : kForeignModules) {
    if (LastPart(pattern) != foreign.theirs) continue;
    if (std::count(foreign.ours.begin(), foreign.ours.end(), LastPart(name)) > 0) return true;
  }
  return MatchesPattern(name, pattern) || MatchesPattern(name, end) || MatchesPattern(module, pattern) ||
         MatchesPattern(module, end);
}

// A pattern that matches no matrix is a typo, a name of PEFT, or names a parameter that cannot have an
// adapter.
Finding MissedTarget(const ModelFacts& model, const std::map<std::string, std::string>& modules,
                     const std::string& pattern) {
  struct Matrices {
    size_t count = 0;
    std::vector<std::string> meant;  // Full names.
  };
  std::map<std::string, Matrices> by_name;  // By the name within a layer: "attention.wq".
  std::string other;                        // A parameter that is meant and cannot have an adapter.
  for (const UnitFacts& unit : model.units) {
    for (const ParamFacts& param : unit.params) {
      const std::string name = FullName(unit, param);
      const auto module = modules.find(name);
      const bool meant = IsMeant(pattern, name, module == modules.end() ? name : module->second);
      if (!TakesAdapter(unit, param)) {
        if (meant) other = name;
        continue;
      }
      Matrices& matrices = by_name[param.name];
      ++matrices.count;
      if (meant) matrices.meant.push_back(name);
    }
  }
  std::vector<std::string> instead;
  for (const auto& [name, matrices] : by_name) {
    if (matrices.meant.size() == matrices.count) {
      instead.push_back(absl::StrCat("'*.", name, "'"));
    } else {
      for (const std::string& each : matrices.meant) instead.push_back(absl::StrCat("'", each, "'"));
    }
  }
  const size_t more = instead.size() - std::min(instead.size(), kMaxSuggestions);
  instead.resize(instead.size() - more);
  if (!instead.empty()) {
    return {absl::StrCat("'", pattern, "' matches no matrix"),
            absl::StrCat("write ", absl::StrJoin(instead, ", "),
                         more > 0 ? absl::StrCat(" and ", more, " more") : "")};
  }
  return {other.empty() ? absl::StrCat("'", pattern, "' matches no parameter")
                        : absl::StrCat("'", pattern, "' matches ", other,
                                       " and no matrix that can have an adapter: embedding, head, norms, "
                                       "routers, experts and matrices that read latents cannot"),
          "write names or patterns in quotes, such as targets: ['*.attention.*', '*.ffn.w2']"};
}

Findings ChecksTargets(const Facts& f) {
  if (!HasLora(f) || !f.llama().has_value()) return {};
  const ModelFacts model = DescribeModel(f.model(), 1, 1, DType::kFp32);
  const auto matches = [&](const std::string& pattern) {
    return std::any_of(model.units.begin(), model.units.end(), [&](const UnitFacts& unit) {
      return std::any_of(unit.params.begin(), unit.params.end(), [&](const ParamFacts& param) {
        return TakesAdapter(unit, param) && MatchesPattern(FullName(unit, param), pattern);
      });
    });
  };
  std::map<std::string, std::string> modules;
  Findings findings;
  for (int i = 0; i < f.job.train().lora().targets_size(); ++i) {
    const std::string& pattern = f.job.train().lora().targets(i);
    if (matches(pattern)) continue;
    if (modules.empty()) modules = ModulesOf(f.model());
    findings.push_back(pattern == kPeftAllLinear
                           ? Finding{absl::StrCat("'", pattern, "' is not a pattern"),
                                     "leave targets out: by default all these matrices get an adapter"}
                           : MissedTarget(model, modules, pattern));
    findings.back().field = absl::StrCat("train.lora.targets[", i, "]");
  }
  return findings;
}

bool IsNf4(const Facts& f) { return f.job.train().lora().base_type() == v1::BASE_TYPE_NF4; }

// A block of NF4 never crosses from one rank's part of a matrix to another's.
Findings ChecksBlocks(const Facts& f) {
  if (!IsNf4(f) || !f.llama().has_value() || !f.IsValid({"parallel"})) return {};
  const int64_t ranks = std::max<int64_t>(1, f.job.parallel().tensor());
  Spec spec;
  spec.model = f.model();
  spec.mesh = Mesh::DataParallel(1, ranks).WithTensor(ranks);
  for (const UnitFacts& unit : DescribeSpec(spec).units) {
    for (const ParamFacts& param : unit.params) {
      if (!TakesAdapter(unit, param)) continue;
      const bool columns = param.partition.is_partitioned() && param.partition.dim == 1;
      const int64_t stretch = columns ? param.shape[1] : param.elements();
      if (stretch % kNf4Block == 0) continue;
      return {{absl::StrCat(columns ? "a row of " : "", FullName(unit, param), " has ", stretch,
                            " numbers on each rank, not a multiple of ", kNf4Block),
               "write base_type: compute, or change the sizes or parallel.tensor"}};
    }
  }
  return {};
}

const Rule kRules[] = {
    {"lora_rank_range", kError, "train.lora.rank", "lora.rank must be from 1 to 1024",
     Limits{1, kMaxLoraRank, "write the rank of the adapters, for example rank: 16", /*required=*/true}},
    {"lora_alpha_range", kError, "train.lora.alpha", "lora.alpha must be above 0 and at most 10^6",
     [](const Facts& f) -> Findings {
       const v1::Lora& lora = f.job.train().lora();
       if (!lora.has_alpha() || (lora.alpha() > 0 && lora.alpha() <= kMaxLoraAlpha)) return {};
       return {{absl::StrCat("alpha is ", lora.alpha(), "; it must be above 0 and at most 10^6"),
                "omit it (default: 2 x rank)"}};
     }},
    {"lora_scale_fits_fp16", kError, "train.lora.alpha",
     "with fp16, the scale of the adapters must be at most 1024",
     [](const Facts& f) -> Findings {
       if (!HasLora(f) || f.compute() != DType::kFp16 || !f.IsValid({"train.lora"})) return {};
       const LoraConfig lora = ToLoraConfig(f.job.train().lora());
       if (lora.scale() <= kMaxFp16Scale) return {};
       return {{absl::StrCat("the scale is ", lora.scale(),
                             "; gradients that it multiplies exceed fp16's range "
                             "of 65504 at every loss scale"),
                absl::StrCat("write alpha: ", 2 * lora.rank, ", or precision.compute: bf16")}};
     }},
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
    {"lora_base_type", kError, "train.lora.base_type", "lora.base_type must be known",
     Known("write compute or nf4")},
    {"lora_nf4_blocks", kError, "train.lora.base_type",
     "with base_type: nf4, matrices on each rank must consist of blocks of 64 numbers", ChecksBlocks},
    {"lora_nf4_reshards", kError, "train.lora.base_type",
     "base_type: nf4 requires strategy: optim_grads_params without keep_gathered",
     When{
         [](const Facts& f) {
           return IsNf4(f) &&
                  (f.strategy() != v1::STRATEGY_OPTIM_GRADS_PARAMS || f.job.fsdp().keep_gathered());
         },
         "weights are in 4 bits only while no unit reads them, and this job would keep all of them converted",
         "write strategy: optim_grads_params, and leave keep_gathered out"}},
    {"lora_nf4_without_hfsdp", kError, "fsdp.outer.strategy",
     "outer.strategy: optim is not supported with base_type: nf4",
     When{[](const Facts& f) {
            return IsNf4(f) && f.job.fsdp().outer().strategy() == v1::STRATEGY_OPTIM &&
                   f.job.fsdp().outer().size() > 1;
          },
          "replicas gather their pieces in precision.compute, not in 4 bits",
          "leave outer.strategy out (HSDP), or write base_type: compute"}},
    {"lora_without_base_model", kWarn, "train.lora.base_model",
     "without lora.base_model, adapters are trained on initial weights",
     When{[](const Facts& f) { return HasLora(f) && f.job.train().lora().base_model().empty(); },
          "the frozen weights are the model's random initialization",
          "write base_model: DIR, or ignore this in a benchmark"}},
    {"lora_base_is_not_dir", kError, "train.lora.base_model",
     "lora.base_model must differ from checkpoint.dir",
     When{[](const Facts& f) {
            const std::string& base = f.job.train().lora().base_model();
            return !base.empty() && base == f.job.checkpoint().dir();
          },
          "checkpoints of the adapters would be mixed with the weights of the model",
          "write another checkpoint.dir"}},
    {"lora_balances_no_experts", kWarn, "model.llama.experts.bias_update_rate",
     "bias_update_rate has no effect with LoRA",
     When{[](const Facts& f) {
            return HasLora(f) && f.llama().has_value() && f.llama()->experts.bias_update_rate > 0;
          },
          "LoRA freezes the router and its selection bias", "omit it"}},
    {"peft_needs_lora", kError, "checkpoint.export", "export: peft requires train.lora",
     When{[](const Facts& f) { return !HasLora(f) && f.job.checkpoint().export_() == "peft"; },
          "the job has no adapters", "write export: hf, or leave it out"}},
    {"lora_export_needs_base", kError, "checkpoint.export",
     "export: hf with LoRA requires train.lora.base_model",
     When{[](const Facts& f) {
            return HasLora(f) && f.job.checkpoint().export_() == "hf" &&
                   f.job.train().lora().base_model().empty();
          },
          "the adapters are merged into the weights of a model, and the job has only initial values",
          "write train.lora.base_model, or export: peft"}},
};

}  // namespace

absl::Span<const Rule> LoraRules() { return kRules; }

}  // namespace fsdpd
