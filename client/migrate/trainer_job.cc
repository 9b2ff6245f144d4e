#include "client/migrate/trainer_job.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <cmath>

#include "base/limits.h"
#include "client/migrate/conversion.h"
#include "client/migrate/megatron_rules.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {
namespace {

// Reports parts that the spec lacks, because another file of the run has them.
void ReportMissingParts(SpecConversion& c) {
  std::vector<std::string> missing;
  if (c.job.model().source_case() == v1::Model::SOURCE_NOT_SET) missing.push_back("model");
  if (!c.job.data().has_sequence_length()) missing.push_back("data");
  if (!c.job.train().has_steps()) missing.push_back("train.steps");
  const v1::Optimizer& optimizer = c.job.optimizer();
  if (!optimizer.adamw().has_lr() && !optimizer.sgd().has_lr()) missing.push_back("optimizer.adamw.lr");
  if (missing.empty()) return;
  c.Report("partial_spec", "", {absl::StrJoin(missing, ", ")});
  c.settings.SetIncomplete();
}

// Reports the settings whose value is `auto`.
void ReportAutomatic(SpecConversion& c) {
  std::vector<std::string> names;
  for (const Setting& setting : c.settings.all()) {
    if (setting.open) names.push_back(setting.written);
  }
  if (!names.empty()) c.Report("auto_values", "", {absl::StrJoin(names, ", ")});
}

void ConvertOffload(SpecConversion& c, const char* setting, const char* offloaded) {
  c.job.mutable_fsdp()->mutable_offload()->set_optimizer(true);
  c.Adjust("offload_optimizer_only", setting, offloaded, "optimizer");
}

void ConvertFp8(SpecConversion& c, const char* setting, const std::string& recipe) {
  c.job.mutable_precision()->set_compute(v1::DTYPE_FP8);
  c.Adjust("fp8_recipe", setting, recipe, "e4m3, one scale per row");
}

// --- torchtitan ---

// A model of a preset: llama3 and 8B is llama3-8b.
void ConvertTitanModel(SpecConversion& c) {
  const std::string name = c.settings.Lower("model.name", "llama3");
  const std::string flavor = c.settings.Lower("model.flavor", "debugmodel");
  for (const std::string& family : {name, name + ".1", absl::StrReplaceAll(name, {{"_", "-"}})}) {
    for (const std::string& preset : {absl::StrCat(family, "-", flavor), flavor == "671b" ? family : ""}) {
      if (FindPreset(preset) == nullptr) continue;
      c.job.mutable_model()->set_preset(preset);
      return c.Adjust("model_preset", "model.flavor", absl::StrCat(name, " ", flavor), preset);
    }
  }
}

void ConvertTitanSchedule(SpecConversion& c) {
  const std::string type = c.settings.Lower("lr_scheduler.decay_type", "linear");
  const std::optional<double> ratio = c.settings.Real("lr_scheduler.decay_ratio");
  if (ratio.has_value()) {
    c.Fill("schedule.wsd");
    const double steps = std::round(*ratio * static_cast<double>(c.job.train().steps()));
    c.job.mutable_schedule()->mutable_wsd()->set_decay_steps(
        static_cast<int64_t>(std::clamp(steps, 0.0, 1e15)));
    if (type != "linear") c.Adjust("wsd_decay_style", "lr_scheduler.decay_type", type, "linear");
  } else if (type == "linear" || type == "cosine") {
    c.Fill(absl::StrCat("schedule.", type));
  } else {
    c.Report("schedule", "lr_scheduler.decay_type", {type});
  }
}

void ConvertTitanCheckpoint(SpecConversion& c) {
  Settings& s = c.settings;
  v1::Checkpoint* checkpoint = c.job.mutable_checkpoint();
  if (s.Flag("checkpoint.enable", s.Flag("checkpoint.enable_checkpoint"))) {
    const std::string root = s.Text("job.dump_folder").value_or("outputs");
    checkpoint->set_dir(absl::StrCat(root, "/", s.Text("checkpoint.folder").value_or("checkpoint")));
    c.Fill("checkpoint");
    const int64_t kept = s.Integer("checkpoint.keep_latest_k", 10);
    if (kept > 0) checkpoint->set_keep_last(kept);
  }
  const std::optional<std::string> load = s.Text("checkpoint.initial_load_path");
  if (load.has_value() && s.Flag("checkpoint.initial_load_in_hf")) {
    checkpoint->set_load(*load);
    checkpoint->set_load_optimizer(false);
  } else if (load.has_value() && !load->empty()) {
    c.Refuse("checkpoint.initial_load_path", "a checkpoint in torchtitan's format (initial_load_in_hf)");
  }
  if (checkpoint->dir().empty() && checkpoint->load().empty()) c.job.clear_checkpoint();
}

void ConvertTitanPrecision(SpecConversion& c) {
  v1::Precision* precision = c.job.mutable_precision();
  precision->set_compute(c.Type("training.mixed_precision_param").value_or(v1::DTYPE_BF16));
  precision->set_grad_comm(c.Type("training.mixed_precision_reduce").value_or(v1::DTYPE_FP32));
  precision->set_main_params(c.Type("training.dtype").value_or(v1::DTYPE_FP32));
  precision->set_main_grads(v1::DTYPE_FP32);
  const Setting* converters = c.settings.Find("model.converters");
  if (converters == nullptr) return;
  for (const std::string& each : converters->values) {
    if (absl::StrContains(each, "float8") || absl::StrContains(each, "mx")) {
      ConvertFp8(c, "model.converters", each);
    } else if (!each.empty()) {
      c.Refuse("model.converters", absl::StrCat("the converter ", each));
    }
  }
}

// Sizes of the mesh, and the cluster that they fill if it is not on the command line.
void ConvertTitanMesh(SpecConversion& c, const Cluster& cluster) {
  Settings& s = c.settings;
  c.Fill("parallel");
  const int64_t sharded = s.Integer("parallelism.data_parallel_shard_degree", -1);
  const int64_t replicas = s.Integer("parallelism.data_parallel_replicate_degree", 1);
  const v1::Parallel& axes = c.job.parallel();
  int64_t world = sharded;
  for (const int64_t size : {replicas, axes.tensor(), axes.context(), axes.pipeline()})
    world = SpecConversion::Times(world, std::clamp<int64_t>(size, 1, kMaxWorld));
  v1::Resources* resources = c.job.mutable_resources();
  const bool is_known = sharded > 0 && replicas > 0;
  if (is_known && !cluster.ranks_per_node.has_value() && world < resources->ranks_per_node())
    resources->set_ranks_per_node(world);
  if (is_known && !cluster.nodes.has_value())
    resources->set_nodes(std::max<int64_t>(world / resources->ranks_per_node(), 1));
  v1::Fsdp* fsdp = c.job.mutable_fsdp();
  fsdp->set_strategy(sharded == 1 ? v1::STRATEGY_NO_SHARD : v1::STRATEGY_OPTIM_GRADS_PARAMS);
  if (sharded != 1) c.SetOuter(replicas);
}

void ConvertTitan(SpecConversion& c, const Cluster& cluster) {
  Settings& s = c.settings;
  ConvertTitanModel(c);
  ConvertTitanMesh(c, cluster);
  c.Fill("data");
  c.job.mutable_data()->mutable_synthetic();
  c.Report("no_data", "training.dataset", {"is text for a tokenizer"});
  s.Find("training.dataset_path");
  c.Fill("train");
  v1::Train* train = c.job.mutable_train();
  const int64_t global = s.Integer("training.global_batch_size", -1);
  train->set_global_batch(global > 0 ? global
                                     : SpecConversion::Times(train->micro_batch(), c.CountReplicas()));
  const char* validates = s.Find("validation.enable") != nullptr ? "validation.enable" : "validation.enabled";
  if (s.Flag(validates))
    c.Adjust("no_evaluation", validates, absl::StrCat("every ", s.Integer("validation.freq", 10), " steps"),
             "never");
  c.Fill("optimizer");
  c.Fill("optimizer.adamw");
  if (const std::string name = s.Lower("optimizer.name", "adamw"); name != "adamw")
    c.Refuse("optimizer.name", absl::StrCat("the optimizer ", name));
  if (c.job.optimizer().adamw().weight_decay() != 0)
    c.Adjust("norms_do_not_decay",
             s.Find("optimizer.weight_decay") != nullptr ? "optimizer.weight_decay" : "", "all parameters",
             "matrices");
  ConvertTitanSchedule(c);
  ConvertTitanPrecision(c);
  v1::Fsdp* fsdp = c.job.mutable_fsdp();
  const std::string recompute = s.Lower("activation_checkpoint.mode", "selective");
  fsdp->set_recompute(recompute == "none"   ? v1::RECOMPUTE_NONE
                      : recompute == "full" ? v1::RECOMPUTE_FULL
                                            : v1::RECOMPUTE_SELECTIVE);
  fsdp->set_keep_gathered(s.Lower("parallelism.fsdp_reshard_after_forward", "") == "never");
  if (s.Flag("training.enable_cpu_offload"))
    ConvertOffload(c, "training.enable_cpu_offload", "parameters, gradients, optimizer");
  ConvertTitanCheckpoint(c);
}

// --- DeepSpeed ---

v1::Strategy StrategyOfStage(SpecConversion& c, const char* setting) {
  const int64_t stage = c.settings.Integer(setting, 0);
  if (stage < 0 || stage > 3) c.Refuse(setting, absl::StrCat("ZeRO stage ", stage));
  return stage == 1   ? v1::STRATEGY_OPTIM
         : stage == 2 ? v1::STRATEGY_OPTIM_GRADS
         : stage == 3 ? v1::STRATEGY_OPTIM_GRADS_PARAMS
                      : v1::STRATEGY_NO_SHARD;
}

void ConvertDeepSpeedOptimizer(SpecConversion& c) {
  Settings& s = c.settings;
  c.Fill("optimizer");
  const std::optional<std::string> type = s.Lower("optimizer.type");
  if (type == "sgd") return c.Fill("optimizer.sgd");
  if (type.has_value() && type != "adam" && type != "adamw")
    c.Refuse("optimizer.type", absl::StrCat("the optimizer ", *type));
  if (!s.Flag("optimizer.params.adam_w_mode", true))
    c.Refuse("optimizer.params.adam_w_mode", "weight decay added to the gradient");
  if (!type.has_value()) return;
  c.Fill("optimizer.adamw");
  const Setting* betas = s.Find("optimizer.params.betas");
  for (size_t i = 0; i < 2; ++i) {
    double beta = i == 0 ? 0.9 : 0.999;
    if (betas != nullptr && i < betas->values.size() && !absl::SimpleAtod(betas->values[i], &beta))
      c.Refuse("optimizer.params.betas", absl::StrCat("'", betas->values[i], "'"));
    c.job.mutable_optimizer()->mutable_adamw()->add_betas(beta);
  }
}

void ConvertDeepSpeedSchedule(SpecConversion& c) {
  Settings& s = c.settings;
  const std::optional<std::string> type = s.Lower("scheduler.type");
  if (!type.has_value()) return;
  const char* shape = type == "warmuplr"         ? "schedule.constant"
                      : type == "warmupdecaylr"  ? "schedule.linear"
                      : type == "warmupcosinelr" ? "schedule.cosine"
                                                 : nullptr;
  if (shape == nullptr) {
    c.Report("schedule", "scheduler.type", {*type});
    return;
  }
  c.Fill(shape);
  if (type != "warmupcosinelr" && s.Lower("scheduler.params.warmup_type", "log") == "log") {
    const bool written = s.Find("scheduler.params.warmup_type") != nullptr;
    c.Adjust("warmup_linear", written ? "scheduler.params.warmup_type" : "scheduler.type", "log", "linear");
  }
  for (const char* name : {"scheduler.params.warmup_min_lr", "scheduler.params.warmup_min_ratio"}) {
    if (const double from = s.Real(name, 0); from != 0) c.Adjust("warmup_from", name, from, "0");
  }
  const std::optional<double> peak = s.Real("scheduler.params.warmup_max_lr");
  if (peak.has_value() && c.job.optimizer().has_adamw())
    c.job.mutable_optimizer()->mutable_adamw()->set_lr(*peak);
  if (peak.has_value() && c.job.optimizer().has_sgd())
    c.job.mutable_optimizer()->mutable_sgd()->set_lr(*peak);
}

// DeepSpeed accumulates gradients of ZeRO 2 and 3 in the type of compute.
void ConvertDeepSpeedPrecision(SpecConversion& c) {
  Settings& s = c.settings;
  v1::Precision* precision = c.job.mutable_precision();
  const bool bf16 = s.Flag("bf16.enabled"), fp16 = s.Flag("fp16.enabled");
  c.SetCompute(bf16, fp16, "fp16.hysteresis");
  const bool sharded = c.job.fsdp().strategy() >= v1::STRATEGY_OPTIM_GRADS;
  const v1::DType main = bf16 && sharded ? v1::DTYPE_BF16 : v1::DTYPE_FP32;
  precision->set_main_grads(c.Type("data_types.grad_accum_dtype").value_or(main));
  precision->set_grad_comm(
      c.Type("communication_data_type").value_or(bf16 ? v1::DTYPE_BF16 : v1::DTYPE_FP32));
  if (!fp16) return;
  precision->mutable_loss_scale()->set_initial(std::exp2(s.Real("fp16.initial_scale_power", 16)));
  c.Adjust("fp16_gradients", "fp16.enabled", "fp16", "fp32", {"and reduced "});
  if (s.Real("fp16.loss_scale", 0) != 0) c.Refuse("fp16.loss_scale", "a constant loss scale");
}

void ConvertDeepSpeedBatch(SpecConversion& c) {
  Settings& s = c.settings;
  c.Fill("train");
  v1::Train* train = c.job.mutable_train();
  const std::optional<int64_t> total = s.Integer("train_batch_size");
  const std::optional<int64_t> micro = s.Integer("train_micro_batch_size_per_gpu");
  const int64_t replicas = std::max<int64_t>(c.CountReplicas(), 1);
  const int64_t rounds = std::max<int64_t>(s.Integer("gradient_accumulation_steps", 1), 1);
  if (micro.has_value()) train->set_micro_batch(*micro);
  if (!micro.has_value() && total.has_value()) train->set_micro_batch(*total / replicas / rounds);
  if (micro.has_value())
    train->set_global_batch(SpecConversion::Times(SpecConversion::Times(*micro, rounds), replicas));
  if (total.has_value()) train->set_global_batch(*total);
}

void ConvertDeepSpeed(SpecConversion& c) {
  Settings& s = c.settings;
  c.Fill("parallel");
  ConvertDeepSpeedBatch(c);
  v1::Fsdp* fsdp = c.job.mutable_fsdp();
  fsdp->set_strategy(StrategyOfStage(c, "zero_optimization.stage"));
  ConvertDeepSpeedOptimizer(c);
  ConvertDeepSpeedSchedule(c);
  ConvertDeepSpeedPrecision(c);
  c.SetPrefetch(s.Integer("zero_optimization.stage3_prefetch_bucket_size"));
  const char* optimizer = "zero_optimization.offload_optimizer.device";
  const char* params = "zero_optimization.offload_param.device";
  if (s.Lower(optimizer, "none") != "none") fsdp->mutable_offload()->set_optimizer(true);
  if (s.Lower(params, "none") != "none") ConvertOffload(c, params, "parameters, optimizer");
}

// --- accelerate ---

// Sharding of FSDP by accelerate, of version 1 (a strategy by name or number) and 2 (reshard_after_forward).
void ConvertAccelerateFsdp(SpecConversion& c) {
  Settings& s = c.settings;
  v1::Fsdp* fsdp = c.job.mutable_fsdp();
  const std::string strategy = s.Lower("fsdp_config.fsdp_sharding_strategy", "full_shard");
  const std::string reshard = s.Lower("fsdp_config.fsdp_reshard_after_forward", "true");
  const bool hybrid = absl::StrContains(strategy, "hybrid") || strategy == "4" || strategy == "5";
  const bool is_grad_op =
      absl::StrContains(strategy, "shard_grad_op") || absl::StrContains(strategy, "zero2");
  fsdp->set_strategy(strategy == "no_shard" || strategy == "3" ? v1::STRATEGY_NO_SHARD
                                                               : v1::STRATEGY_OPTIM_GRADS_PARAMS);
  fsdp->set_keep_gathered(is_grad_op || strategy == "2" || strategy == "5" || reshard == "false" ||
                          reshard == "shard_grad_op");
  const int64_t nodes = c.job.resources().nodes();
  c.SetOuter(s.Integer("parallelism_config.parallelism_config_dp_replicate_size", hybrid ? nodes : 1));
  if (s.Flag("fsdp_config.fsdp_activation_checkpointing")) fsdp->set_recompute(v1::RECOMPUTE_FULL);
  if (s.Flag("fsdp_config.fsdp_offload_params"))
    ConvertOffload(c, "fsdp_config.fsdp_offload_params", "parameters, gradients, optimizer");
}

void ConvertAccelerate(SpecConversion& c, const Cluster& cluster) {
  Settings& s = c.settings;
  v1::Resources* resources = c.job.mutable_resources();
  const int64_t machines = s.Integer("num_machines", 1);
  const std::optional<int64_t> processes = s.Integer("num_processes");
  if (!cluster.nodes.has_value() && machines > 0) resources->set_nodes(machines);
  if (!cluster.ranks_per_node.has_value() && processes.has_value() && machines > 0)
    resources->set_ranks_per_node(*processes / machines);
  const std::string type = s.Lower("distributed_type", "no");
  const std::string precision = s.Lower("mixed_precision", "no");
  c.Fill("parallel");
  if (type == "fsdp") {
    ConvertAccelerateFsdp(c);
  } else if (type == "deepspeed") {
    c.job.mutable_fsdp()->set_strategy(StrategyOfStage(c, "deepspeed_config.zero_stage"));
    if (s.Lower("deepspeed_config.offload_optimizer_device", "none") != "none")
      c.job.mutable_fsdp()->mutable_offload()->set_optimizer(true);
    if (s.Lower("deepspeed_config.offload_param_device", "none") != "none")
      ConvertOffload(c, "deepspeed_config.offload_param_device", "parameters, optimizer");
  } else if (type == "no" || type == "multi_gpu" || type == "megatron_lm") {
    c.job.mutable_fsdp()->set_strategy(v1::STRATEGY_NO_SHARD);
  } else {
    c.Refuse("distributed_type", type);
  }
  if (s.Integer("deepspeed_config.gradient_accumulation_steps", 1) != 1) {
    c.Report("partial_spec", "deepspeed_config.gradient_accumulation_steps",
             {"the micro-batch size, which is multiplied by this for train.global_batch"});
  }
  c.Fill("optimizer");
  const bool half = precision == "bf16" || precision == "fp8";
  c.job.mutable_precision()->set_compute(half                  ? v1::DTYPE_BF16
                                         : precision == "fp16" ? v1::DTYPE_FP16
                                                               : v1::DTYPE_FP32);
  if (precision == "fp8") ConvertFp8(c, "mixed_precision", "fp8");
  if (half && type == "fsdp") c.job.mutable_precision()->set_grad_comm(v1::DTYPE_BF16);
}

}  // namespace

LocatedViolations ConvertRun(Settings* settings, const Cluster& cluster, const std::string& file,
                             v1::JobSpec* job) {
  if (settings->trainer() == Trainer::kMegatron) {
    LocatedViolations violations = CheckMegatron(settings);
    const LocatedViolations more = ConvertMegatronJob(settings, cluster, file, job);
    violations.insert(violations.end(), more.begin(), more.end());
    return violations;
  }
  SpecConversion c(settings, file, job);
  job->set_name("migrated");
  job->mutable_resources()->set_nodes(cluster.nodes.value_or(1));
  job->mutable_resources()->set_ranks_per_node(cluster.ranks_per_node.value_or(8));
  job->mutable_resources()->set_device(v1::DEVICE_CUDA);
  if (settings->trainer() == Trainer::kTorchtitan) ConvertTitan(c, cluster);
  if (settings->trainer() == Trainer::kDeepSpeed) ConvertDeepSpeed(c);
  if (settings->trainer() == Trainer::kAccelerate) ConvertAccelerate(c, cluster);
  c.ReportUnread();
  ReportAutomatic(c);
  ReportMissingParts(c);
  c.violations.insert(c.violations.end(), settings->value_violations().begin(),
                      settings->value_violations().end());
  return std::move(c.violations);
}

}  // namespace fsdpd
