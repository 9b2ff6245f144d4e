#include "client/migrate/megatron_rules.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <optional>

namespace fsdpd {
namespace {

constexpr ViolationLevel kError = ViolationLevel::kError;
constexpr ViolationLevel kAdjust = ViolationLevel::kAdjust;
constexpr ViolationLevel kWarn = ViolationLevel::kWarn;

struct Finding {
  const char* setting;  // Name of the setting or environment variable; its place is reported.
  std::string reason;
  std::string fix;
  std::string before = {};
  std::string after = {};
};
using Findings = std::vector<Finding>;

struct Rule {
  const char* id;
  ViolationLevel level;
  const char* text;  // The condition that must hold.
  Findings (*check)(Settings* s);
};

std::string Strategy(Settings* s) {
  return s->Lower("data_parallel_sharding_strategy").value_or("optim_grads_params");
}

bool IsFullySharded(Settings* s) { return Strategy(s) == "optim_grads_params"; }

bool LoadsCheckpoint(Settings* s) {
  const bool load = s->Find("load") != nullptr;
  return s->Find("pretrained_checkpoint") != nullptr || load;
}

std::string CheckpointFormat(Settings* s) { return s->Lower("ckpt_format").value_or("torch_dist"); }

bool UsesMegatronFsdp(Settings* s) { return s->Flag("use_megatron_fsdp", !s->Flag("use_torch_fsdp2")); }

int64_t Size(Settings* s, const char* name) { return s->Integer(name).value_or(1); }

bool IsOneOf(const std::string& value, std::initializer_list<const char*> known) {
  for (const char* each : known) {
    if (value == each) return true;
  }
  return false;
}

std::string Environment(Settings* s, const std::string& name) {
  const Setting* variable = s->FindVariable(name);
  return variable == nullptr ? "" : variable->values.front();
}

// Sets a flag that has only one supported value to that value, and reports the change.
Findings ForceFlag(Settings* s, const char* name, bool value, const std::string& reason,
                   bool default_value = false) {
  if (s->Flag(name, default_value) == value) return {};
  s->Set(name, value ? "true" : "false");
  return {{name, reason, "", value ? "false" : "true", value ? "true" : "false"}};
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

const Rule kRules[] = {
    {"one_fsdp", kError, "use_megatron_fsdp and use_torch_fsdp2 are mutually exclusive",
     [](Settings* s) -> Findings {
       if (!s->Flag("use_torch_fsdp2") || !s->Flag("use_megatron_fsdp")) return {};
       return {
           {"use_torch_fsdp2", "Megatron-FSDP and PyTorch's FSDP2 are mutually exclusive", "leave one out"}};
     }},
    {"fsdp_flags_agree", kAdjust, "use_megatron_fsdp becomes the same in dist and ddp",
     [](Settings* s) { return SettleSections(s, "use_megatron_fsdp"); }},
    {"fsdp_version_known", kError, "megatron_fsdp_version must be 1 or 2",
     [](Settings* s) -> Findings {
       const std::optional<int64_t> version = s->Integer("megatron_fsdp_version");
       if (!version.has_value() || *version == 1 || *version == 2) return {};
       return {{"megatron_fsdp_version", absl::StrCat("unknown version ", *version), "write 1"}};
     }},
    {"strategy_known", kError, "the sharding strategies must be known",
     [](Settings* s) -> Findings {
       Findings findings;
       if (!IsOneOf(Strategy(s), {"no_shard", "optim", "optim_grads", "optim_grads_params"})) {
         findings.push_back({"data_parallel_sharding_strategy",
                             absl::StrCat("unknown strategy '", Strategy(s), "'"),
                             "write no_shard, optim, optim_grads or optim_grads_params"});
       }
       const std::string outer = s->Lower("outer_dp_sharding_strategy").value_or("no_shard");
       if (!IsOneOf(outer, {"no_shard", "optim"})) {
         findings.push_back({"outer_dp_sharding_strategy",
                             absl::StrCat("unknown outer strategy '", outer, "'"),
                             "write no_shard or optim"});
       }
       return findings;
     }},
    {"outer_optim_needs_params", kError, "an outer axis can shard only with optim_grads_params",
     [](Settings* s) -> Findings {
       if (s->Lower("outer_dp_sharding_strategy").value_or("no_shard") != "optim" || IsFullySharded(s))
         return {};
       return {{"outer_dp_sharding_strategy",
                "an outer axis that shards is not supported with partial sharding",
                "write data_parallel_sharding_strategy: optim_grads_params"}};
     }},
    {"distributed_optimizer_on", kAdjust, "use_distributed_optimizer is turned on",
     [](Settings* s) {
       const bool given = s->Find("use_distributed_optimizer") != nullptr;
       if (!given) return Findings{};
       return ForceFlag(s, "use_distributed_optimizer", true,
                        "the sharding strategy determines the sharding of the optimizer");
     }},
    {"sections_agree", kAdjust, "overlap_param_gather becomes the same in ddp and optimizer",
     [](Settings* s) { return SettleSections(s, "overlap_param_gather"); }},
    {"average_in_collective_off", kAdjust, "average_in_collective is turned off",
     [](Settings* s) {
       return ForceFlag(s, "average_in_collective", false,
                        "gradients are summed, and scaled once by the number of tokens that count");
     }},
    {"reuse_grad_buf_off", kAdjust, "reuse_grad_buf_for_mxfp8_param_ag is turned off",
     [](Settings* s) {
       return ForceFlag(s, "reuse_grad_buf_for_mxfp8_param_ag", false,
                        "the optimization is only for unsharded data parallelism");
     }},
    {"gradient_accumulation_fusion_off", kAdjust, "gradient_accumulation_fusion is turned off",
     [](Settings* s) {
       return ForceFlag(s, "gradient_accumulation_fusion", false,
                        "weight gradients are written directly into the buckets without it");
     }},
    {"overlap_on", kAdjust, "communication of sharded gradients and parameters is always overlapped",
     [](Settings* s) -> Findings {
       Findings findings;
       const auto turn_on = [&](const char* name) {
         for (Finding& each :
              ForceFlag(s, name, true, "the strategy always overlaps it with compute", true)) {
           findings.push_back(std::move(each));
         }
       };
       if (s->Flag("overlap_param_gather") && !s->Flag("overlap_grad_reduce", true))
         return {};  // The next rule reports this combination.
       if (Strategy(s) != "no_shard" && Strategy(s) != "optim") turn_on("overlap_grad_reduce");
       if (IsFullySharded(s)) turn_on("overlap_param_gather");
       return findings;
     }},
    {"overlap_param_needs_grad", kError, "overlap_param_gather requires overlap_grad_reduce",
     [](Settings* s) -> Findings {
       if (!s->Flag("overlap_param_gather") || s->Flag("overlap_grad_reduce", true)) return {};
       return {{"overlap_param_gather", "requires overlap_grad_reduce", "turn both on"}};
     }},
    {"precision_aware_optimizer", kAdjust,
     "use_precision_aware_optimizer becomes precision.moments and main_grads",
     [](Settings* s) -> Findings {
       if (!s->Flag("use_precision_aware_optimizer")) return {};
       return {{"use_precision_aware_optimizer", "the dtypes of gradients and moments are fields of the spec",
                "", "true", "precision.{main_grads,moments}"}};
     }},
    {"types_need_precision_aware", kError,
     "without use_precision_aware_optimizer, gradients, parameters and moments of the optimizer must be fp32",
     [](Settings* s) -> Findings {
       Findings findings;
       for (const char* name :
            {"main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"}) {
         const std::string type = s->Lower(name).value_or("fp32");
         if (absl::EndsWith(type, "fp32") || absl::EndsWith(type, "float32")) continue;
         if (s->AnyFlag("use_precision_aware_optimizer")) continue;
         findings.push_back({name, absl::StrCat("'", type, "' requires use_precision_aware_optimizer"),
                             "set use_precision_aware_optimizer, or write fp32"});
       }
       return findings;
     }},
    {"nccl_buffers", kAdjust, "buffers always have fixed addresses",
     [](Settings* s) -> Findings {
       Findings findings;
       for (const char* name : {"nccl_ub", "fsdp_double_buffer", "megatron_fsdp_max_pool_double_buffer"}) {
         if (!s->Flag(name)) continue;
         findings.push_back({name, "the arena gives every bucket a fixed address, and units share memory", "",
                             "true", "always"});
       }
       return findings;
     }},
    {"manual_registration_needs_nccl_ub", kError, "fsdp_manual_registration requires nccl_ub",
     [](Settings* s) -> Findings {
       if (!s->Flag("manual_registration") || s->Flag("nccl_ub")) return {};
       return {{"manual_registration", "requires nccl_ub", "set nccl_ub, or leave it out"}};
     }},
    {"one_bucket_knob", kError,
     "at most one of bucket_size and num_buckets can be set, and it must be positive",
     [](Settings* s) -> Findings {
       const std::optional<int64_t> buckets = s->Integer("num_buckets");
       if (buckets.has_value() && s->Find("bucket_size") == nullptr) {
         if (*buckets > 0) return {};
         return {{"num_buckets", absl::StrCat("num_buckets is ", *buckets), "write a positive number"}};
       }
       if (!buckets.has_value()) return {};
       return {{"num_buckets", "bucket_size and num_buckets are mutually exclusive",
                "leave both out: units are buckets"}};
     }},
    {"rank_order", kError, "use_tp_pp_dp_mapping is not supported",
     [](Settings* s) -> Findings {
       if (!s->Flag("use_tp_pp_dp_mapping")) return {};
       return {{"use_tp_pp_dp_mapping",
                "shard groups are neighboring ranks: this rank order is not supported", "leave it out"}};
     }},
    {"weight_hash_check", kError, "a weight hash check is not supported with optim_grads_params",
     [](Settings* s) -> Findings {
       if (s->Find("check_weight_hash_across_dp_replicas_interval") == nullptr || !IsFullySharded(s))
         return {};
       return {{"check_weight_hash_across_dp_replicas_interval",
                "with optim_grads_params no rank has complete weights to hash", "leave it out"}};
     }},
    {"fsdp_dtensor_only", kError,
     "checkpoints must be saved as fsdp_dtensor, and loaded as fsdp_dtensor or torch_dist",
     [](Settings* s) -> Findings {
       const std::string format = CheckpointFormat(s);
       if (format == "fsdp_dtensor" || !UsesMegatronFsdp(s)) return {};
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
     }},
    {"torch_dist_load", kAdjust, "a torch_dist checkpoint is loaded without the optimizer's state",
     [](Settings* s) -> Findings {
       if (s->Find("load") == nullptr || CheckpointFormat(s) != "torch_dist") return {};
       return {{"load",
                "only the parameters of a torch_dist checkpoint are loaded, and training starts at step 1; "
                "`fsdpctl ckpt convert` keeps the optimizer's state",
                "", "parameters, optimizer, iteration", "parameters"}};
     }},
    {"no_load_optim", kAdjust, "a checkpoint that is loaded without the optimizer's state starts at step 1",
     [](Settings* s) -> Findings {
       if (s->Find("load") == nullptr || s->Flag("load_optim", true) || CheckpointFormat(s) == "torch_dist")
         return {};
       return {{"load_optim",
                "only the parameters are loaded, and training starts at step 1; Megatron continues at the "
                "checkpoint's iteration",
                "", "parameters, iteration", "parameters"}};
     }},
    {"torch_dist_experts", kError,
     "loading a torch_dist checkpoint is not supported with experts or latent attention",
     [](Settings* s) -> Findings {
       if (!LoadsCheckpoint(s) || CheckpointFormat(s) != "torch_dist") return {};
       const bool experts = s->Integer("num_experts").value_or(0) > 0;
       if (!experts && !s->Flag("multi_latent_attention")) return {};
       return {{s->Find("load") != nullptr ? "load" : "pretrained_checkpoint",
                absl::StrCat(experts ? "experts" : "latent attention",
                             " cannot be loaded from a torch_dist checkpoint"),
                "load a Hugging Face directory of the model, or leave load out"}};
     }},
    {"fsdp_dtensor_needs_fsdp", kError, "fsdp_dtensor requires Megatron-FSDP",
     [](Settings* s) -> Findings {
       if (s->Lower("ckpt_format").value_or("") != "fsdp_dtensor" || UsesMegatronFsdp(s)) return {};
       return {
           {"ckpt_format", "in Megatron, only Megatron-FSDP writes fsdp_dtensor", "set use_megatron_fsdp"}};
     }},
    {"async_save_format", kError, "async_save requires torch_dist or fsdp_dtensor",
     [](Settings* s) -> Findings {
       const std::string format = CheckpointFormat(s);
       if (!s->Flag("async_save") || IsOneOf(format, {"torch_dist", "fsdp_dtensor"})) return {};
       return {{"async_save", absl::StrCat(format, " cannot be saved asynchronously"),
                "set ckpt_format: fsdp_dtensor"}};
     }},
    {"hf_sidecar", kError, "also_save_hf_checkpoint is not supported with fsdp_dtensor",
     [](Settings* s) -> Findings {
       if (!s->Flag("also_save_hf_checkpoint")) return {};
       return {{"also_save_hf_checkpoint", "is not supported with fsdp_dtensor", "export afterwards"}};
     }},
    {"meta_init_with_no_shard", kError, "init_model_with_meta_device is not supported with no_shard",
     [](Settings* s) -> Findings {
       if (!s->Flag("init_model_with_meta_device") || Strategy(s) != "no_shard") return {};
       return {{"init_model_with_meta_device",
                "is not supported with no_shard, which has the whole model on every rank", "leave it out"}};
     }},
    {"cpu_offload", kError, "activations must be offloaded by whole layers, and only without pipeline stages",
     [](Settings* s) -> Findings {
       if (s->Flag("fine_grained_activation_offloading"))
         return {{"fine_grained_activation_offloading", "offloading of single modules is not supported",
                  "offload whole layers: cpu_offloading with cpu_offloading_num_layers"}};
       if (!s->Flag("cpu_offloading") || Size(s, "pipeline_model_parallel_size") == 1) return {};
       return {{"cpu_offloading", "is not supported with pipeline stages", "leave one of the two out"}};
     }},
    {"hybrid_context_parallel", kError, "hybrid_context_parallel is not supported",
     [](Settings* s) -> Findings {
       if (!s->Flag("hybrid_context_parallel")) return {};
       return {{"hybrid_context_parallel", "is not supported with FSDP", "leave it out"}};
     }},
    {"optimizer_known", kError, "the optimizer must be adam or sgd",
     [](Settings* s) -> Findings {
       const std::string optimizer = s->Lower("optimizer").value_or("adam");
       if (IsOneOf(optimizer, {"adam", "adamw", "sgd"})) return {};
       return {
           {"optimizer", absl::StrCat("'", optimizer, "' is not supported with FSDP"), "use adam or sgd"}};
     }},
    {"mixed_precision_wins", kAdjust, "bf16 and fp16 become those of the recipe that mixed_precision names",
     [](Settings* s) -> Findings {
       const std::string recipe = s->Lower("mixed_precision").value_or("");
       const bool bf16 = absl::StrContains(recipe, "bf16");
       if (!bf16 && !absl::StartsWith(recipe, "fp16")) return {};
       const char* other = bf16 ? "fp16" : "bf16";
       if (!s->AnyFlag(other)) return {};
       return ForceFlag(s, other, false,
                        absl::StrCat("mixed_precision: ", recipe, " overrides it, as in Megatron Bridge"));
     }},
    {"one_half_precision", kError, "at most one of bf16 and fp16 can be set",
     [](Settings* s) -> Findings {
       if (!s->AnyFlag("bf16") || !s->AnyFlag("fp16")) return {};
       return {{"fp16", "bf16 and fp16 are mutually exclusive", "leave one out"}};
     }},
    {"fp4_unsupported", kError, "FP4 is not supported",
     [](Settings* s) -> Findings {
       const char* fix = "use a recipe of FP8 or bf16";
       Findings findings;
       for (const char* name : {"fp4", "fp4_format", "fp4_param", "fp4_param_gather"}) {
         if (s->AnyFlag(name)) findings.push_back({name, "FP4 is not supported", fix});
       }
       if (absl::StrContains(s->Lower("mixed_precision").value_or(""), "fp4"))
         findings.push_back({"mixed_precision", "FP4 is not supported", fix});
       return findings;
     }},
    {"virtual_stages", kWarn, "on GPUs, interleaved stages become one chunk of layers per stage",
     [](Settings* s) -> Findings {
       for (const char* name :
            {"virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage",
             "num_virtual_stages_per_pipeline_rank"}) {
         if (s->Integer(name).value_or(0) <= 0 || Size(s, "pipeline_model_parallel_size") == 1) continue;
         return {{name,
                  "interleaved stages are supported on CPU ranks only; on GPUs each stage is one chunk of "
                  "layers, with the same result and a larger pipeline bubble",
                  "write parallel.pipeline_schedule: zero_bubble if gradients are not sharded, or use more "
                  "micro-batches"}};
       }
       return {};
     }},
    {"connections", kAdjust, "ranks run without CUDA_DEVICE_MAX_CONNECTIONS=1",
     [](Settings* s) -> Findings {
       if (Environment(s, "CUDA_DEVICE_MAX_CONNECTIONS") != "1") return {};
       return {{"CUDA_DEVICE_MAX_CONNECTIONS",
                "one connection serializes communication and compute; agents do not pass it to their ranks",
                "", "1", "unset"}};
     }},
    {"expandable_segments", kError, "nccl_ub is not supported with expandable segments",
     [](Settings* s) -> Findings {
       const std::string config = Environment(s, "PYTORCH_CUDA_ALLOC_CONF");
       if (!s->Flag("nccl_ub") || !absl::StrContains(config, "expandable_segments:True")) return {};
       return {{"nccl_ub", "is not supported with expandable segments", "unset PYTORCH_CUDA_ALLOC_CONF"}};
     }},
    {"graph_checks_nan", kError, "check_for_nan_in_loss is not supported with a graph of the whole iteration",
     [](Settings* s) -> Findings {
       const std::string scope = s->Lower("cuda_graph_scope").value_or("");
       const bool whole =
           scope == "full_iteration" || s->Lower("cuda_graph_impl").value_or("") == "full_iteration";
       if (!whole || !s->Flag("check_for_nan_in_loss_and_grad", s->Flag("check_for_nan_in_loss"))) return {};
       return {{s->Find("cuda_graph_scope") != nullptr ? "cuda_graph_scope" : "cuda_graph_impl",
                "a captured iteration cannot stop at a NaN", "turn check_for_nan_in_loss off"}};
     }},
    {"per_token_loss", kAdjust, "the loss becomes the mean over all target tokens",
     [](Settings* s) {
       if (s->Find("calculate_per_token_loss") == nullptr) return Findings{};
       return ForceFlag(
           s, "calculate_per_token_loss", true,
           "a mean of micro-batch means weights tokens unequally; both are equal without padding");
     }},
    {"version_two", kWarn, "limits of the experimental engine do not apply",
     [](Settings* s) -> Findings {
       if (s->Integer("megatron_fsdp_version").value_or(1) != 2) return {};
       return {{"megatron_fsdp_version", "limits of Megatron's experimental engine do not apply", ""}};
     }},
};

}  // namespace

LocatedViolations CheckMegatron(Settings* settings) {
  LocatedViolations violations;
  for (const Rule& rule : kRules) {
    for (const Finding& finding : rule.check(settings)) {
      const Setting* setting = settings->Find(finding.setting);
      if (setting == nullptr) setting = settings->FindVariable(finding.setting);
      // The value of a shell variable is unknown, so it cannot be checked.
      if (setting == nullptr ? settings->incomplete() : setting->value_is_open()) continue;
      LocatedViolation located;
      if (setting != nullptr) located.place = setting->place;
      located.violation = {
          rule.id,        rule.level,  setting != nullptr ? setting->written : finding.setting,
          finding.reason, finding.fix, finding.before,
          finding.after};
      violations.push_back(std::move(located));
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
