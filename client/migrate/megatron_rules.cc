#include "client/migrate/megatron_rules.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <optional>

namespace fsdpd {
namespace {

constexpr ViolationLevel kError = ViolationLevel::kError;
constexpr ViolationLevel kAdjust = ViolationLevel::kAdjust;
constexpr ViolationLevel kWarn = ViolationLevel::kWarn;

struct Finding {
  std::string setting;  // Name of the setting or environment variable; its place is reported.
  std::string reason;
  std::string fix;
  std::string before = {};
  std::string after = {};
};
using Findings = std::vector<Finding>;

// The violation of a rule, as conditions that all hold:
//   flag  *flag (in any section)  name? (is set)  name=a,b (one of them)  name~a,b (contains one)
//   name>1  name<1
//   ! negates a condition, $ precedes an environment variable
//   a/b holds if one holds; with a|b, each that holds is a violation
// It is reported at the setting after "@" if that is set, or else at the first one.
struct Rule {
  const char* id;
  ViolationLevel level;
  const char* text;  // The condition that must hold; empty: that of the row before.
  const char* when;
  const char* reason;  // $0 is the last value that was compared.
  const char* fix = "";
  const char* before = "";
  const char* after = "";                  // The setting becomes true or false, if this is "true" or "false".
  Findings (*check)(Settings*) = nullptr;  // Instead of the conditions.
};

std::string DefaultOf(absl::string_view name, Settings* s) {
  if (name == "data_parallel_sharding_strategy") return "optim_grads_params";
  if (name == "outer_dp_sharding_strategy") return "no_shard";
  if (name == "ckpt_format") return "torch_dist";
  if (name == "optimizer") return "adam";
  if (absl::EndsWith(name, "_dtype")) return "fp32";
  if (name == "use_megatron_fsdp") return s->Flag("use_torch_fsdp2") ? "false" : "true";
  if (name == "check_for_nan_in_loss_and_grad") return s->Flag("check_for_nan_in_loss") ? "true" : "false";
  return name == "overlap_grad_reduce" || name == "load_optim" ? "true" : "";
}

std::string ValueOf(absl::string_view name, Settings* s) {
  if (!absl::ConsumePrefix(&name, "$")) return s->Lower(name, DefaultOf(name, s));
  const Setting* variable = s->FindVariable(std::string(name));
  return variable == nullptr ? "" : variable->values.front();
}

constexpr char kComparisons[] = "=~<>";

bool Holds(absl::string_view condition, Settings* s) {
  if (absl::ConsumePrefix(&condition, "!")) return !Holds(condition, s);
  if (absl::ConsumePrefix(&condition, "*")) return s->AnyFlag(condition);
  if (absl::ConsumeSuffix(&condition, "?")) return s->Find(condition) != nullptr;
  const size_t at = condition.find_first_of(kComparisons);
  if (at == absl::string_view::npos) return s->Flag(condition, DefaultOf(condition, s) == "true");
  const absl::string_view name = condition.substr(0, at), compared = condition.substr(at + 1);
  if (int64_t bound = 0; absl::StrContains("<>", condition[at]) && absl::SimpleAtoi(compared, &bound)) {
    const std::optional<int64_t> number = s->Integer(name);
    return number.has_value() && (condition[at] == '<' ? *number < bound : *number > bound);
  }
  const std::string value = ValueOf(name, s);
  const std::vector<absl::string_view> known = absl::StrSplit(compared, ',');
  return std::any_of(known.begin(), known.end(), [&](absl::string_view each) {
    return condition[at] == '=' ? value == each : absl::StrContains(value, each);
  });
}

std::string NameIn(absl::string_view condition) {
  const size_t begin = condition.find_first_not_of("!*$");
  return std::string(condition.substr(begin, condition.find_first_of("?=~<>", begin) - begin));
}

Findings CheckConditions(const Rule& rule, absl::string_view when, Settings* s) {
  if (const size_t bar = when.find('|'); bar != absl::string_view::npos) {
    const size_t begin = when.rfind(' ', bar) + 1, end = std::min(when.find(' ', bar), when.size());
    absl::string_view all = when.substr(begin, end - begin);
    const char* mark = absl::ConsumePrefix(&all, "@") ? "@" : "";
    Findings findings;
    for (const absl::string_view each : absl::StrSplit(all, '|')) {
      const Findings more =
          CheckConditions(rule, absl::StrCat(when.substr(0, begin), mark, each, when.substr(end)), s);
      findings.insert(findings.end(), more.begin(), more.end());
    }
    return findings;
  }
  std::string setting, value;
  for (absl::string_view condition : absl::StrSplit(when, ' ')) {
    const bool marked = absl::ConsumePrefix(&condition, "@");
    absl::string_view found;
    for (const absl::string_view each : absl::StrSplit(condition, '/')) {
      if (Holds(each, s) && found.empty()) found = each;  // Looks up every setting, which marks it as used.
    }
    if (found.empty()) return {};
    const std::string name = NameIn(found);
    if (setting.empty() || (marked && s->Find(name) != nullptr)) setting = name;
    if (found.find_first_of(kComparisons) != absl::string_view::npos) value = ValueOf(name, s);
  }
  if (const std::string after = rule.after; after == "true" || after == "false") s->Set(setting, after);
  return {{setting, absl::StrReplaceAll(rule.reason, {{"$0", value}}), rule.fix, rule.before, rule.after}};
}

// Reports a setting whose values differ between sections, and sets all of them to true.
Findings SettleSections(Settings* s, const char* name) {
  const std::vector<const Setting*> all = s->FindAll(name);
  for (const Setting* other : all) {
    if (other->values == all.front()->values) continue;
    const std::string before = other->values.empty() ? "true" : other->values.front();
    s->Set(name, "true");
    return {
        {name, absl::StrCat(all.front()->written, " and ", other->written, " disagree"), "", before, "true"}};
  }
  return {};
}

constexpr Rule Checked(const char* id, ViolationLevel level, const char* text, Findings (*check)(Settings*)) {
  return {id, level, text, "", "", "", "", "", check};
}

constexpr Rule kRules[] = {
    {"one_fsdp", kError, "use_megatron_fsdp and use_torch_fsdp2 are mutually exclusive",
     "use_torch_fsdp2 use_megatron_fsdp", "Megatron-FSDP and PyTorch's FSDP2 are mutually exclusive",
     "leave one out"},
    Checked("fsdp_flags_agree", kAdjust, "use_megatron_fsdp becomes the same in dist and ddp",
            [](Settings* s) { return SettleSections(s, "use_megatron_fsdp"); }),
    {"fsdp_version_known", kError, "megatron_fsdp_version must be 1 or 2",
     "megatron_fsdp_version<1/megatron_fsdp_version>2", "unknown version $0", "write 1"},
    {"strategy_known", kError, "the sharding strategies must be known",
     "!data_parallel_sharding_strategy=no_shard,optim,optim_grads,optim_grads_params",
     "unknown strategy '$0'", "write no_shard, optim, optim_grads or optim_grads_params"},
    {"strategy_known", kError, "", "!outer_dp_sharding_strategy=no_shard,optim",
     "unknown outer strategy '$0'", "write no_shard or optim"},
    {"outer_optim_needs_params", kError, "an outer axis can shard only with optim_grads_params",
     "outer_dp_sharding_strategy=optim !data_parallel_sharding_strategy=optim_grads_params",
     "an outer axis that shards is not supported with partial sharding",
     "write data_parallel_sharding_strategy: optim_grads_params"},
    {"distributed_optimizer_on", kAdjust, "use_distributed_optimizer is turned on",
     "use_distributed_optimizer? !use_distributed_optimizer",
     "the sharding strategy determines the sharding of the optimizer", "", "false", "true"},
    Checked("sections_agree", kAdjust, "overlap_param_gather becomes the same in ddp and optimizer",
            [](Settings* s) { return SettleSections(s, "overlap_param_gather"); }),
    {"average_in_collective_off", kAdjust, "average_in_collective is turned off", "average_in_collective",
     "gradients are summed, and scaled once by the number of tokens that count", "", "true", "false"},
    {"reuse_grad_buf_off", kAdjust, "reuse_grad_buf_for_mxfp8_param_ag is turned off",
     "reuse_grad_buf_for_mxfp8_param_ag", "the optimization is only for unsharded data parallelism", "",
     "true", "false"},
    {"gradient_accumulation_fusion_off", kAdjust, "gradient_accumulation_fusion is turned off",
     "gradient_accumulation_fusion", "weight gradients are written directly into the buckets without it", "",
     "true", "false"},
    {"overlap_on", kAdjust, "communication of sharded gradients and parameters is always overlapped",
     "!overlap_grad_reduce !overlap_param_gather !data_parallel_sharding_strategy=no_shard,optim",
     "the strategy always overlaps it with compute", "", "false", "true"},
    {"overlap_on", kAdjust, "",
     "overlap_param_gather? !overlap_param_gather data_parallel_sharding_strategy=optim_grads_params",
     "the strategy always overlaps it with compute", "", "false", "true"},
    {"overlap_param_needs_grad", kError, "overlap_param_gather requires overlap_grad_reduce",
     "overlap_param_gather !overlap_grad_reduce", "requires overlap_grad_reduce", "turn both on"},
    {"precision_aware_optimizer", kAdjust,
     "use_precision_aware_optimizer becomes precision.moments and main_grads",
     "use_precision_aware_optimizer", "the dtypes of gradients and moments are fields of the spec", "",
     "true", "precision.{main_grads,moments}"},
    {"types_need_precision_aware", kError,
     "without use_precision_aware_optimizer, gradients, parameters and moments of the optimizer must be fp32",
     "!*use_precision_aware_optimizer "
     "@!main_grads_dtype~fp32,float32|!main_params_dtype~fp32,float32|!exp_avg_dtype~fp32,float32|"
     "!exp_avg_sq_dtype~fp32,float32",
     "'$0' requires use_precision_aware_optimizer", "set use_precision_aware_optimizer, or write fp32"},
    {"nccl_buffers", kAdjust, "buffers always have fixed addresses",
     "nccl_ub|fsdp_double_buffer|megatron_fsdp_max_pool_double_buffer",
     "the arena gives every bucket a fixed address, and units share memory", "", "true", "always"},
    {"manual_registration_needs_nccl_ub", kError, "fsdp_manual_registration requires nccl_ub",
     "manual_registration !nccl_ub", "requires nccl_ub", "set nccl_ub, or leave it out"},
    {"one_bucket_knob", kError,
     "at most one of bucket_size and num_buckets can be set, and it must be positive",
     "num_buckets<1 !bucket_size?", "num_buckets is $0", "write a positive number"},
    {"one_bucket_knob", kError, "", "num_buckets? bucket_size?",
     "bucket_size and num_buckets are mutually exclusive", "leave both out: units are buckets"},
    {"rank_order", kError, "use_tp_pp_dp_mapping is not supported", "use_tp_pp_dp_mapping",
     "shard groups are neighboring ranks: this rank order is not supported", "leave it out"},
    {"weight_hash_check", kError, "a weight hash check is not supported with optim_grads_params",
     "check_weight_hash_across_dp_replicas_interval? data_parallel_sharding_strategy=optim_grads_params",
     "with optim_grads_params no rank has complete weights to hash", "leave it out"},
    {"fsdp_dtensor_only", kError,
     "checkpoints must be saved as fsdp_dtensor, and loaded as fsdp_dtensor or torch_dist",
     "save? use_megatron_fsdp @!ckpt_format=fsdp_dtensor",
     "save is set and ckpt_format is $0: sharded checkpoints are saved as fsdp_dtensor only",
     "set ckpt_format: fsdp_dtensor"},
    {"fsdp_dtensor_only", kError, "",
     "load?/pretrained_checkpoint? !save? use_megatron_fsdp @!ckpt_format=fsdp_dtensor,torch_dist",
     "a checkpoint in the format $0 cannot be loaded", "load one in the format fsdp_dtensor or torch_dist"},
    {"torch_dist_load", kAdjust, "a torch_dist checkpoint is loaded without the optimizer's state",
     "load? ckpt_format=torch_dist",
     "only the parameters of a torch_dist checkpoint are loaded, and training starts at step 1; `fsdpctl "
     "ckpt convert` keeps the optimizer's state",
     "", "parameters, optimizer, iteration", "parameters"},
    {"no_load_optim", kAdjust, "a checkpoint that is loaded without the optimizer's state starts at step 1",
     "load? @!load_optim !ckpt_format=torch_dist",
     "only the parameters are loaded, and training starts at step 1; Megatron continues at the checkpoint's "
     "iteration",
     "", "parameters, iteration", "parameters"},
    {"torch_dist_experts", kError,
     "loading a torch_dist checkpoint is not supported with experts or latent attention",
     "load?/pretrained_checkpoint? ckpt_format=torch_dist num_experts>0",
     "experts cannot be loaded from a torch_dist checkpoint",
     "load a Hugging Face directory of the model, or leave load out"},
    {"torch_dist_experts", kError, "",
     "load?/pretrained_checkpoint? ckpt_format=torch_dist !num_experts>0 multi_latent_attention",
     "latent attention cannot be loaded from a torch_dist checkpoint",
     "load a Hugging Face directory of the model, or leave load out"},
    {"fsdp_dtensor_needs_fsdp", kError, "fsdp_dtensor requires Megatron-FSDP",
     "ckpt_format=fsdp_dtensor !use_megatron_fsdp", "in Megatron, only Megatron-FSDP writes fsdp_dtensor",
     "set use_megatron_fsdp"},
    {"async_save_format", kError, "async_save requires torch_dist or fsdp_dtensor",
     "async_save !ckpt_format=torch_dist,fsdp_dtensor", "$0 cannot be saved asynchronously",
     "set ckpt_format: fsdp_dtensor"},
    {"hf_sidecar", kError, "also_save_hf_checkpoint is not supported with fsdp_dtensor",
     "also_save_hf_checkpoint", "is not supported with fsdp_dtensor", "export afterwards"},
    {"meta_init_with_no_shard", kError, "init_model_with_meta_device is not supported with no_shard",
     "init_model_with_meta_device data_parallel_sharding_strategy=no_shard",
     "is not supported with no_shard, which has the whole model on every rank", "leave it out"},
    {"cpu_offload", kError, "activations must be offloaded by whole layers, and only without pipeline stages",
     "fine_grained_activation_offloading", "offloading of single modules is not supported",
     "offload whole layers: cpu_offloading with cpu_offloading_num_layers"},
    {"cpu_offload", kError, "",
     "cpu_offloading !fine_grained_activation_offloading pipeline_model_parallel_size>1",
     "is not supported with pipeline stages", "leave one of the two out"},
    {"hybrid_context_parallel", kError, "hybrid_context_parallel is not supported", "hybrid_context_parallel",
     "is not supported with FSDP", "leave it out"},
    {"optimizer_known", kError, "the optimizer must be adam or sgd", "!optimizer=adam,adamw,sgd",
     "'$0' is not supported with FSDP", "use adam or sgd"},
    {"mixed_precision_wins", kAdjust, "bf16 and fp16 become those of the recipe that mixed_precision names",
     "mixed_precision~bf16 @*fp16 fp16", "mixed_precision: $0 overrides it, as in Megatron Bridge", "",
     "true", "false"},
    {"mixed_precision_wins", kAdjust, "", "mixed_precision~fp16 !mixed_precision~bf16 @*bf16 bf16",
     "mixed_precision: $0 overrides it, as in Megatron Bridge", "", "true", "false"},
    {"one_half_precision", kError, "at most one of bf16 and fp16 can be set", "*bf16 @*fp16",
     "bf16 and fp16 are mutually exclusive", "leave one out"},
    {"fp4_unsupported", kError, "FP4 is not supported",
     "*fp4|*fp4_format|*fp4_param|*fp4_param_gather|mixed_precision~fp4", "FP4 is not supported",
     "use a recipe of FP8 or bf16"},
    {"virtual_stages", kWarn, "on GPUs, interleaved stages become one chunk of layers per stage",
     "virtual_pipeline_model_parallel_size>0/num_layers_per_virtual_pipeline_stage>0/"
     "num_virtual_stages_per_pipeline_rank>0 pipeline_model_parallel_size>1",
     "interleaved stages are supported on CPU ranks only; on GPUs each stage is one chunk of layers, with "
     "the same result and a larger pipeline bubble",
     "write parallel.pipeline_schedule: zero_bubble if gradients are not sharded, or use more micro-batches"},
    {"connections", kAdjust, "ranks run without CUDA_DEVICE_MAX_CONNECTIONS=1",
     "$CUDA_DEVICE_MAX_CONNECTIONS=1",
     "one connection serializes communication and compute; agents do not pass it to their ranks", "", "1",
     "unset"},
    {"expandable_segments", kError, "nccl_ub is not supported with expandable segments",
     "nccl_ub $PYTORCH_CUDA_ALLOC_CONF~expandable_segments:True", "is not supported with expandable segments",
     "unset PYTORCH_CUDA_ALLOC_CONF"},
    {"graph_checks_nan", kError, "check_for_nan_in_loss is not supported with a graph of the whole iteration",
     "cuda_graph_scope=full_iteration/cuda_graph_impl=full_iteration check_for_nan_in_loss_and_grad",
     "a captured iteration cannot stop at a NaN", "turn check_for_nan_in_loss off"},
    {"per_token_loss", kAdjust, "the loss becomes the mean over all target tokens",
     "calculate_per_token_loss? !calculate_per_token_loss",
     "a mean of micro-batch means weights tokens unequally; both are equal without padding", "", "false",
     "true"},
    {"version_two", kWarn, "limits of the experimental engine do not apply", "megatron_fsdp_version=2",
     "limits of Megatron's experimental engine do not apply"},
};

}  // namespace

LocatedViolations CheckMegatron(Settings* settings) {
  LocatedViolations violations;
  for (const Rule& rule : kRules) {
    const Findings findings =
        rule.check != nullptr ? rule.check(settings) : CheckConditions(rule, rule.when, settings);
    for (const Finding& finding : findings) {
      const Setting* setting = settings->Find(finding.setting);
      if (setting == nullptr) setting = settings->FindVariable(finding.setting);
      // The value of a shell variable is unknown, so it cannot be checked.
      if (setting == nullptr ? settings->incomplete() : setting->value_is_open()) continue;
      violations.push_back({setting != nullptr ? setting->place : Place(),
                            {rule.id, rule.level, setting != nullptr ? setting->written : finding.setting,
                             finding.reason, finding.fix, finding.before, finding.after}});
    }
  }
  return violations;
}

std::vector<MigrateRule> MegatronRules() {
  std::vector<MigrateRule> texts;
  for (const Rule& rule : kRules) {
    if (*rule.text != '\0') texts.push_back({rule.id, rule.level, rule.text});
  }
  return texts;
}

}  // namespace fsdpd
