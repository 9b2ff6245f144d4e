#include "client/migrate/megatron_rules.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

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

struct Rule {
  const char* id;
  ViolationLevel level;
  const char* text;              // The condition that must hold.
  Findings (*check)(Settings*);  // Null: the following columns describe the check.
  // The violation, as conditions that all hold: flag, !flag, *flag (in any section), name? (is set),
  // name=value, name!=value. It is reported at the setting after "@", or at the first one.
  const char* when = "";
  const char* reason = "";  // $0 is the value of the last condition's setting.
  const char* fix = "";
  const char* before = "";
  const char* after = "";  // The setting becomes true or false, if this is "true" or "false".
};

std::string DefaultOf(absl::string_view name, Settings* s) {
  if (name == "data_parallel_sharding_strategy") return "optim_grads_params";
  if (name == "ckpt_format") return "torch_dist";
  if (name == "optimizer") return "adam";
  if (name == "use_megatron_fsdp") return s->Flag("use_torch_fsdp2") ? "false" : "true";
  return name == "overlap_grad_reduce" || name == "load_optim" ? "true" : "";
}

std::string ValueOf(absl::string_view name, Settings* s) {
  return s->Lower(name).value_or(DefaultOf(name, s));
}

bool Holds(absl::string_view condition, Settings* s) {
  if (absl::ConsumeSuffix(&condition, "?")) return s->Find(condition) != nullptr;
  if (absl::ConsumePrefix(&condition, "*")) return s->AnyFlag(condition);
  if (const size_t equals = condition.find('='); equals != absl::string_view::npos) {
    absl::string_view name = condition.substr(0, equals);
    const bool differs = absl::ConsumeSuffix(&name, "!");
    return (ValueOf(name, s) == condition.substr(equals + 1)) != differs;
  }
  const bool off = absl::ConsumePrefix(&condition, "!");
  return s->Flag(condition, DefaultOf(condition, s) == "true") != off;
}

std::string NameIn(absl::string_view condition) {
  const size_t begin = condition.find_first_not_of("@!*");
  return std::string(condition.substr(begin, condition.find_first_of("?!=", begin) - begin));
}

Findings CheckConditions(const Rule& rule, Settings* s) {
  const std::vector<absl::string_view> conditions = absl::StrSplit(rule.when, ' ');
  std::string setting = NameIn(conditions.front());
  for (absl::string_view each : conditions) {
    if (absl::ConsumePrefix(&each, "@")) setting = NameIn(each);
    if (!Holds(each, s)) return {};
  }
  std::string reason = rule.reason;
  if (absl::StrContains(reason, "$0"))
    absl::StrReplaceAll({{"$0", ValueOf(NameIn(conditions.back()), s)}}, &reason);
  const std::string after = rule.after;
  if (after == "true" || after == "false") s->Set(setting, after);
  return {{setting, reason, rule.fix, rule.before, after}};
}

bool IsFullySharded(Settings* s) {
  return ValueOf("data_parallel_sharding_strategy", s) == "optim_grads_params";
}

bool LoadsCheckpoint(Settings* s) {
  const bool load = s->Find("load") != nullptr;
  return s->Find("pretrained_checkpoint") != nullptr || load;
}

bool IsOneOf(const std::string& value, std::initializer_list<const char*> known) {
  return std::count(known.begin(), known.end(), value) > 0;
}

bool HasStages(Settings* s) { return s->Integer("pipeline_model_parallel_size").value_or(1) != 1; }

std::string Environment(Settings* s, const std::string& name) {
  const Setting* variable = s->FindVariable(name);
  return variable == nullptr ? "" : variable->values.front();
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

Findings CheckVersion(Settings* s) {
  const std::optional<int64_t> version = s->Integer("megatron_fsdp_version");
  if (!version.has_value() || *version == 1 || *version == 2) return {};
  return {{"megatron_fsdp_version", absl::StrCat("unknown version ", *version), "write 1"}};
}

Findings CheckStrategies(Settings* s) {
  Findings findings;
  const std::string strategy = ValueOf("data_parallel_sharding_strategy", s);
  if (!IsOneOf(strategy, {"no_shard", "optim", "optim_grads", "optim_grads_params"})) {
    findings.push_back({"data_parallel_sharding_strategy", absl::StrCat("unknown strategy '", strategy, "'"),
                        "write no_shard, optim, optim_grads or optim_grads_params"});
  }
  const std::string outer = s->Lower("outer_dp_sharding_strategy").value_or("no_shard");
  if (!IsOneOf(outer, {"no_shard", "optim"})) {
    findings.push_back({"outer_dp_sharding_strategy", absl::StrCat("unknown outer strategy '", outer, "'"),
                        "write no_shard or optim"});
  }
  return findings;
}

Findings TurnOverlapOn(Settings* s) {
  Findings findings;
  const auto turn_on = [&](const char* name) {
    if (s->Flag(name, true)) return;
    s->Set(name, "true");
    findings.push_back({name, "the strategy always overlaps it with compute", "", "false", "true"});
  };
  // The next rule reports this combination.
  if (s->Flag("overlap_param_gather") && !s->Flag("overlap_grad_reduce", true)) return {};
  if (!IsOneOf(ValueOf("data_parallel_sharding_strategy", s), {"no_shard", "optim"}))
    turn_on("overlap_grad_reduce");
  if (IsFullySharded(s)) turn_on("overlap_param_gather");
  return findings;
}

Findings CheckOptimizerTypes(Settings* s) {
  Findings findings;
  for (const char* name : {"main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"}) {
    const std::string type = s->Lower(name).value_or("fp32");
    if (absl::EndsWith(type, "fp32") || absl::EndsWith(type, "float32")) continue;
    if (s->AnyFlag("use_precision_aware_optimizer")) continue;
    findings.push_back({name, absl::StrCat("'", type, "' requires use_precision_aware_optimizer"),
                        "set use_precision_aware_optimizer, or write fp32"});
  }
  return findings;
}

Findings ReportBuffers(Settings* s) {
  Findings findings;
  for (const char* name : {"nccl_ub", "fsdp_double_buffer", "megatron_fsdp_max_pool_double_buffer"}) {
    if (!s->Flag(name)) continue;
    findings.push_back(
        {name, "the arena gives every bucket a fixed address, and units share memory", "", "true", "always"});
  }
  return findings;
}

Findings CheckBuckets(Settings* s) {
  const std::optional<int64_t> buckets = s->Integer("num_buckets");
  if (!buckets.has_value()) return {};
  if (s->Find("bucket_size") != nullptr) {
    return {{"num_buckets", "bucket_size and num_buckets are mutually exclusive",
             "leave both out: units are buckets"}};
  }
  if (*buckets > 0) return {};
  return {{"num_buckets", absl::StrCat("num_buckets is ", *buckets), "write a positive number"}};
}

Findings CheckCheckpointFormat(Settings* s) {
  const std::string format = ValueOf("ckpt_format", s);
  if (format == "fsdp_dtensor" || !Holds("use_megatron_fsdp", s)) return {};
  const char* place = s->Find("ckpt_format") != nullptr ? "ckpt_format" : "save";
  if (s->Find("save") != nullptr) {
    return {{place,
             absl::StrCat("save is set and ckpt_format is ", format,
                          ": sharded checkpoints are saved as fsdp_dtensor only"),
             "set ckpt_format: fsdp_dtensor"}};
  }
  if (!LoadsCheckpoint(s) || format == "torch_dist") return {};
  return {{place, absl::StrCat("a checkpoint in the format ", format, " cannot be loaded"),
           "load one in the format fsdp_dtensor or torch_dist"}};
}

Findings CheckTorchDistModel(Settings* s) {
  if (!LoadsCheckpoint(s) || ValueOf("ckpt_format", s) != "torch_dist") return {};
  const bool experts = s->Integer("num_experts").value_or(0) > 0;
  if (!experts && !s->Flag("multi_latent_attention")) return {};
  return {{s->Find("load") != nullptr ? "load" : "pretrained_checkpoint",
           absl::StrCat(experts ? "experts" : "latent attention",
                        " cannot be loaded from a torch_dist checkpoint"),
           "load a Hugging Face directory of the model, or leave load out"}};
}

Findings CheckActivationOffload(Settings* s) {
  if (s->Flag("fine_grained_activation_offloading")) {
    return {{"fine_grained_activation_offloading", "offloading of single modules is not supported",
             "offload whole layers: cpu_offloading with cpu_offloading_num_layers"}};
  }
  if (!s->Flag("cpu_offloading") || !HasStages(s)) return {};
  return {{"cpu_offloading", "is not supported with pipeline stages", "leave one of the two out"}};
}

Findings PreferMixedPrecision(Settings* s) {
  const std::string recipe = s->Lower("mixed_precision").value_or("");
  const bool bf16 = absl::StrContains(recipe, "bf16");
  const char* other = bf16 ? "fp16" : "bf16";
  if ((!bf16 && !absl::StartsWith(recipe, "fp16")) || !s->AnyFlag(other) || !s->Flag(other)) return {};
  s->Set(other, "false");
  return {{other, absl::StrCat("mixed_precision: ", recipe, " overrides it, as in Megatron Bridge"), "",
           "true", "false"}};
}

Findings CheckFp4(Settings* s) {
  Findings findings;
  const auto refuse = [&](const char* name) {
    findings.push_back({name, "FP4 is not supported", "use a recipe of FP8 or bf16"});
  };
  for (const char* name : {"fp4", "fp4_format", "fp4_param", "fp4_param_gather"}) {
    if (s->AnyFlag(name)) refuse(name);
  }
  if (absl::StrContains(s->Lower("mixed_precision").value_or(""), "fp4")) refuse("mixed_precision");
  return findings;
}

Findings ReportVirtualStages(Settings* s) {
  for (const char* name : {"virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage",
                           "num_virtual_stages_per_pipeline_rank"}) {
    if (s->Integer(name).value_or(0) <= 0 || !HasStages(s)) continue;
    return {{name,
             "interleaved stages are supported on CPU ranks only; on GPUs each stage is one chunk of "
             "layers, with the same result and a larger pipeline bubble",
             "write parallel.pipeline_schedule: zero_bubble if gradients are not sharded, or use more "
             "micro-batches"}};
  }
  return {};
}

Findings ReportConnections(Settings* s) {
  if (Environment(s, "CUDA_DEVICE_MAX_CONNECTIONS") != "1") return {};
  return {{"CUDA_DEVICE_MAX_CONNECTIONS",
           "one connection serializes communication and compute; agents do not pass it to their ranks", "",
           "1", "unset"}};
}

Findings CheckSegments(Settings* s) {
  const std::string config = Environment(s, "PYTORCH_CUDA_ALLOC_CONF");
  if (!s->Flag("nccl_ub") || !absl::StrContains(config, "expandable_segments:True")) return {};
  return {{"nccl_ub", "is not supported with expandable segments", "unset PYTORCH_CUDA_ALLOC_CONF"}};
}

Findings CheckGraph(Settings* s) {
  const std::string scope = s->Lower("cuda_graph_scope").value_or("");
  const bool whole =
      scope == "full_iteration" || s->Lower("cuda_graph_impl").value_or("") == "full_iteration";
  if (!whole || !s->Flag("check_for_nan_in_loss_and_grad", s->Flag("check_for_nan_in_loss"))) return {};
  return {{s->Find("cuda_graph_scope") != nullptr ? "cuda_graph_scope" : "cuda_graph_impl",
           "a captured iteration cannot stop at a NaN", "turn check_for_nan_in_loss off"}};
}

constexpr Rule kRules[] = {
    {"one_fsdp", kError, "use_megatron_fsdp and use_torch_fsdp2 are mutually exclusive", nullptr,
     "use_torch_fsdp2 use_megatron_fsdp", "Megatron-FSDP and PyTorch's FSDP2 are mutually exclusive",
     "leave one out"},
    {"fsdp_flags_agree", kAdjust, "use_megatron_fsdp becomes the same in dist and ddp",
     [](Settings* s) { return SettleSections(s, "use_megatron_fsdp"); }},
    {"fsdp_version_known", kError, "megatron_fsdp_version must be 1 or 2", CheckVersion},
    {"strategy_known", kError, "the sharding strategies must be known", CheckStrategies},
    {"outer_optim_needs_params", kError, "an outer axis can shard only with optim_grads_params", nullptr,
     "outer_dp_sharding_strategy=optim data_parallel_sharding_strategy!=optim_grads_params",
     "an outer axis that shards is not supported with partial sharding",
     "write data_parallel_sharding_strategy: optim_grads_params"},
    {"distributed_optimizer_on", kAdjust, "use_distributed_optimizer is turned on", nullptr,
     "use_distributed_optimizer? !use_distributed_optimizer",
     "the sharding strategy determines the sharding of the optimizer", "", "false", "true"},
    {"sections_agree", kAdjust, "overlap_param_gather becomes the same in ddp and optimizer",
     [](Settings* s) { return SettleSections(s, "overlap_param_gather"); }},
    {"average_in_collective_off", kAdjust, "average_in_collective is turned off", nullptr,
     "average_in_collective", "gradients are summed, and scaled once by the number of tokens that count", "",
     "true", "false"},
    {"reuse_grad_buf_off", kAdjust, "reuse_grad_buf_for_mxfp8_param_ag is turned off", nullptr,
     "reuse_grad_buf_for_mxfp8_param_ag", "the optimization is only for unsharded data parallelism", "",
     "true", "false"},
    {"gradient_accumulation_fusion_off", kAdjust, "gradient_accumulation_fusion is turned off", nullptr,
     "gradient_accumulation_fusion", "weight gradients are written directly into the buckets without it", "",
     "true", "false"},
    {"overlap_on", kAdjust, "communication of sharded gradients and parameters is always overlapped",
     TurnOverlapOn},
    {"overlap_param_needs_grad", kError, "overlap_param_gather requires overlap_grad_reduce", nullptr,
     "overlap_param_gather !overlap_grad_reduce", "requires overlap_grad_reduce", "turn both on"},
    {"precision_aware_optimizer", kAdjust,
     "use_precision_aware_optimizer becomes precision.moments and main_grads", nullptr,
     "use_precision_aware_optimizer", "the dtypes of gradients and moments are fields of the spec", "",
     "true", "precision.{main_grads,moments}"},
    {"types_need_precision_aware", kError,
     "without use_precision_aware_optimizer, gradients, parameters and moments of the optimizer must be fp32",
     CheckOptimizerTypes},
    {"nccl_buffers", kAdjust, "buffers always have fixed addresses", ReportBuffers},
    {"manual_registration_needs_nccl_ub", kError, "fsdp_manual_registration requires nccl_ub", nullptr,
     "manual_registration !nccl_ub", "requires nccl_ub", "set nccl_ub, or leave it out"},
    {"one_bucket_knob", kError,
     "at most one of bucket_size and num_buckets can be set, and it must be positive", CheckBuckets},
    {"rank_order", kError, "use_tp_pp_dp_mapping is not supported", nullptr, "use_tp_pp_dp_mapping",
     "shard groups are neighboring ranks: this rank order is not supported", "leave it out"},
    {"weight_hash_check", kError, "a weight hash check is not supported with optim_grads_params", nullptr,
     "check_weight_hash_across_dp_replicas_interval? data_parallel_sharding_strategy=optim_grads_params",
     "with optim_grads_params no rank has complete weights to hash", "leave it out"},
    {"fsdp_dtensor_only", kError,
     "checkpoints must be saved as fsdp_dtensor, and loaded as fsdp_dtensor or torch_dist",
     CheckCheckpointFormat},
    {"torch_dist_load", kAdjust, "a torch_dist checkpoint is loaded without the optimizer's state", nullptr,
     "load? ckpt_format=torch_dist",
     "only the parameters of a torch_dist checkpoint are loaded, and training starts at step 1; `fsdpctl "
     "ckpt convert` keeps the optimizer's state",
     "", "parameters, optimizer, iteration", "parameters"},
    {"no_load_optim", kAdjust, "a checkpoint that is loaded without the optimizer's state starts at step 1",
     nullptr, "load? @!load_optim ckpt_format!=torch_dist",
     "only the parameters are loaded, and training starts at step 1; Megatron continues at the checkpoint's "
     "iteration",
     "", "parameters, iteration", "parameters"},
    {"torch_dist_experts", kError,
     "loading a torch_dist checkpoint is not supported with experts or latent attention",
     CheckTorchDistModel},
    {"fsdp_dtensor_needs_fsdp", kError, "fsdp_dtensor requires Megatron-FSDP", nullptr,
     "ckpt_format=fsdp_dtensor !use_megatron_fsdp", "in Megatron, only Megatron-FSDP writes fsdp_dtensor",
     "set use_megatron_fsdp"},
    {"async_save_format", kError, "async_save requires torch_dist or fsdp_dtensor", nullptr,
     "async_save ckpt_format!=torch_dist ckpt_format!=fsdp_dtensor", "$0 cannot be saved asynchronously",
     "set ckpt_format: fsdp_dtensor"},
    {"hf_sidecar", kError, "also_save_hf_checkpoint is not supported with fsdp_dtensor", nullptr,
     "also_save_hf_checkpoint", "is not supported with fsdp_dtensor", "export afterwards"},
    {"meta_init_with_no_shard", kError, "init_model_with_meta_device is not supported with no_shard", nullptr,
     "init_model_with_meta_device data_parallel_sharding_strategy=no_shard",
     "is not supported with no_shard, which has the whole model on every rank", "leave it out"},
    {"cpu_offload", kError, "activations must be offloaded by whole layers, and only without pipeline stages",
     CheckActivationOffload},
    {"hybrid_context_parallel", kError, "hybrid_context_parallel is not supported", nullptr,
     "hybrid_context_parallel", "is not supported with FSDP", "leave it out"},
    {"optimizer_known", kError, "the optimizer must be adam or sgd", nullptr,
     "optimizer!=adam optimizer!=adamw optimizer!=sgd", "'$0' is not supported with FSDP", "use adam or sgd"},
    {"mixed_precision_wins", kAdjust, "bf16 and fp16 become those of the recipe that mixed_precision names",
     PreferMixedPrecision},
    {"one_half_precision", kError, "at most one of bf16 and fp16 can be set", nullptr, "*bf16 @*fp16",
     "bf16 and fp16 are mutually exclusive", "leave one out"},
    {"fp4_unsupported", kError, "FP4 is not supported", CheckFp4},
    {"virtual_stages", kWarn, "on GPUs, interleaved stages become one chunk of layers per stage",
     ReportVirtualStages},
    {"connections", kAdjust, "ranks run without CUDA_DEVICE_MAX_CONNECTIONS=1", ReportConnections},
    {"expandable_segments", kError, "nccl_ub is not supported with expandable segments", CheckSegments},
    {"graph_checks_nan", kError, "check_for_nan_in_loss is not supported with a graph of the whole iteration",
     CheckGraph},
    {"per_token_loss", kAdjust, "the loss becomes the mean over all target tokens", nullptr,
     "calculate_per_token_loss? !calculate_per_token_loss",
     "a mean of micro-batch means weights tokens unequally; both are equal without padding", "", "false",
     "true"},
    {"version_two", kWarn, "limits of the experimental engine do not apply", nullptr,
     "megatron_fsdp_version=2", "limits of Megatron's experimental engine do not apply"},
};

}  // namespace

LocatedViolations CheckMegatron(Settings* settings) {
  LocatedViolations violations;
  for (const Rule& rule : kRules) {
    const Findings findings = rule.check != nullptr ? rule.check(settings) : CheckConditions(rule, settings);
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
  for (const Rule& rule : kRules) texts.push_back({rule.id, rule.level, rule.text});
  return texts;
}

}  // namespace fsdpd
