#include "client/migrate/trainer_job.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <set>

#include "client/migrate/field_origins.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

using Lines = std::set<std::string>;

struct Result {
  v1::JobSpec job;
  Lines lines;  // All violations, also of the spec's rules where a setting is their origin.

  explicit Result(const std::string& text, const Cluster& cluster = {}) {
    Settings settings;
    LocatedViolations violations = ReadSettings(text, "in", &settings);
    if (violations.empty()) {
      violations = ConvertRun(&settings, cluster, "in", &job);
      for (const Violation& violation : CheckJob(job, UnreadFields(violations))) {
        const LocatedViolation located = AtOrigin(violation, "in", &settings);
        if (located.place.line > 0 || !settings.incomplete()) violations.push_back(located);
      }
    }
    for (const LocatedViolation& located : violations) lines.insert(Render(located));
  }
  bool Has(absl::string_view text) const {
    for (const std::string& line : lines) {
      if (absl::StrContains(line, text)) return true;
    }
    return false;
  }
};

void ExpectJob(const v1::JobSpec& job, const std::string& json) {
  v1::JobSpec want;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &want);
  ASSERT_TRUE(parsed.ok()) << parsed.ToString();
  EXPECT_EQ(job.DebugString(), want.DebugString());
}

// The settings of torchtitan's train_configs/llama3_8b.toml.
constexpr char kTitan[] = R"(# Llama 3 8B
[job]
dump_folder = "/runs/llama"

[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets/hf/Llama-3.1-8B"

[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8

[lr_scheduler]
warmup_steps = 200

[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 1

[checkpoint]
enable = false
folder = "checkpoint"
interval = 500

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
)";

TEST(ConvertTorchtitan, ConvertsLlama3) {
  const Result result(kTitan, {2, 8});
  EXPECT_EQ(result.lines,
            (Lines{
                "in: adjusted: norms and biases have no weight decay (all parameters -> matrices) "
                "[norms_do_not_decay]",
                "in: warning: 5 settings are without effect on the result, and dropped: "
                "activation_checkpoint.selective_ac_option, checkpoint.folder, checkpoint.interval, "
                "job.dump_folder, model.hf_assets_path [without_effect]",
                "in:23:11: warning: training.dataset: is text for a tokenizer: random tokens are used; set "
                "data.tokens in the spec [no_data]",
                "in:7:10: adjusted: model.flavor: becomes the preset with the sizes of this model; check "
                "rope_scaling (llama3 8b -> llama3-8b) [model_preset]",
            }));
  ExpectJob(result.job, R"({
    "name": "migrated", "model": {"preset": "llama3-8b"}, "data": {"synthetic": {}, "sequenceLength": 8192},
    "train": {"steps": 1000, "microBatch": 1, "globalBatch": 16},
    "optimizer": {"adamw": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weightDecay": 0.1}, "clipNorm": 1},
    "schedule": {"linear": {"warmupSteps": 200, "minLrRatio": 0}},
    "precision": {"compute": "DTYPE_BF16", "mainParams": "DTYPE_FP32", "mainGrads": "DTYPE_FP32",
                  "gradComm": "DTYPE_FP32"},
    "fsdp": {"strategy": "STRATEGY_OPTIM_GRADS_PARAMS", "recompute": "RECOMPUTE_SELECTIVE"},
    "parallel": {"tensor": 1, "context": 1, "expert": 1, "pipeline": 1},
    "resources": {"nodes": 2, "ranksPerNode": 8, "device": "DEVICE_CUDA"}})");
}

TEST(ConvertTorchtitan, ReportsDifferences) {
  const auto with = [](const std::string& from, const std::string& to) {
    return Result(absl::StrReplaceAll(kTitan, {{from, to}}));
  };
  EXPECT_TRUE(with("\"8B\"", "\"debugmodel\"").Has("the file does not have model; add this"));
  EXPECT_EQ(with("\"8B\"", "\"405B\"").job.model().preset(), "llama3.1-405b");
  EXPECT_TRUE(with("\"AdamW\"", "\"Muon\"")
                  .Has("in:11:8: error: optimizer.name: the optimizer muon is not supported"));
  EXPECT_TRUE(with("warmup_steps = 200", "decay_type = \"sqrt\"").Has("'sqrt' is not supported"));
  const Result wsd = with("warmup_steps = 200", "decay_ratio = 0.2\ndecay_type = \"cosine\"");
  EXPECT_EQ(wsd.job.schedule().wsd().decay_steps(), 200);
  EXPECT_TRUE(wsd.Has("(cosine -> linear) [wsd_decay_style]"));
  const Result mesh = with("data_parallel_replicate_degree = 1\ndata_parallel_shard_degree = -1",
                           "data_parallel_replicate_degree = 4\ndata_parallel_shard_degree = 8");
  EXPECT_EQ(mesh.job.resources().nodes(), 4);
  EXPECT_EQ(mesh.job.fsdp().outer().size(), 4);
  EXPECT_EQ(mesh.job.train().global_batch(), 32);
  const Result saves = with("enable = false", "enable = true\nkeep_latest_k = 2\ninitial_load_path = \"/m\"");
  EXPECT_EQ(saves.job.checkpoint().dir(), "/runs/llama/checkpoint");
  EXPECT_EQ(saves.job.checkpoint().every_steps(), 500);
  EXPECT_EQ(saves.job.checkpoint().keep_last(), 2);
  EXPECT_TRUE(saves.Has("checkpoint.initial_load_path: a checkpoint in torchtitan's format"));
  const Result fp8 = with("hf_assets_path", "converters = [\"quantize.linear.float8\"]\nhf_assets_path");
  EXPECT_EQ(fp8.job.precision().compute(), v1::DTYPE_FP8);
  EXPECT_TRUE(fp8.Has("[fp8_recipe]"));
  EXPECT_TRUE(
      with("max_norm = 1.0", "max_norms = 1.0").Has("training.max_norms (did you mean training.max_norm?)"));
  EXPECT_TRUE(with("seq_len = 8192", "seq_len = -1")
                  .Has("in:20:11: error: training.seq_len: becomes data.sequence_length"));
}

TEST(ConvertTorchtitan, PlacesSyntaxErrors) {
  EXPECT_EQ(Result("[training]\nsteps = 1\nseq_len = \n").lines.size(), 1u);
  EXPECT_TRUE(Result("[training]\nsteps = 1\nseq_len = \n").Has("in:3:"))
      << *Result("[training]\nsteps = 1\nseq_len = \n").lines.begin();
  EXPECT_TRUE(Result("[training]\nsteps = 1\nsteps = 2\n").Has("in:3:"));
}

// The settings of a ZeRO-3 file that the Hugging Face trainer completes.
TEST(ConvertDeepSpeed, ConvertsZero3WithAutomaticValues) {
  const Result result(R"({
    "bf16": {"enabled": true},
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR",
                  "params": {"warmup_min_lr": 0, "warmup_num_steps": 100, "total_num_steps": 5000,
                             "warmup_type": "linear"}},
    "zero_optimization": {"stage": 3, "overlap_comm": true, "stage3_prefetch_bucket_size": 1000,
                          "offload_optimizer": {"device": "cpu", "pin_memory": true}},
    "gradient_accumulation_steps": 4, "gradient_clipping": 1.0, "steps_per_print": 2000,
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2})");
  EXPECT_EQ(result.lines,
            (Lines{
                "in: warning: set by the program that reads the file, and dropped: train_batch_size; set "
                "these in the spec if the defaults differ [auto_values]",
                "in: warning: the file does not have model, data; add this to the spec before you submit it "
                "[partial_spec]",
                "in: warning: 3 settings are without effect on the result, and dropped: steps_per_print, "
                "zero_optimization.offload_optimizer.pin_memory, zero_optimization.overlap_comm "
                "[without_effect]",
            }));
  ExpectJob(result.job, R"({
    "name": "migrated", "train": {"steps": 5000, "microBatch": 2, "globalBatch": 64},
    "optimizer": {"adamw": {"lr": 2e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weightDecay": 0.1}, "clipNorm": 1},
    "schedule": {"linear": {"warmupSteps": 100}},
    "precision": {"compute": "DTYPE_BF16", "mainGrads": "DTYPE_BF16", "gradComm": "DTYPE_BF16"},
    "fsdp": {"strategy": "STRATEGY_OPTIM_GRADS_PARAMS", "prefetchBytes": 2000, "offload": {"optimizer": true}},
    "parallel": {"tensor": 1}, "resources": {"nodes": 1, "ranksPerNode": 8, "device": "DEVICE_CUDA"}})");
}

TEST(ConvertDeepSpeed, ReportsDifferences) {
  const Result fp16(
      "{\"fp16\": {\"enabled\": true, \"initial_scale_power\": 12, \"hysteresis\": 2},\n"
      " \"optimizer\": {\"type\": \"Lamb\", \"params\": {\"lr\": 1e-3}},\n"
      " \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 1e-6}},\n"
      " \"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"},\n"
      "  \"zero_quantized_weights\": true},\n \"curriculum_learning\": {\"enabled\": true}}");
  EXPECT_EQ(fp16.job.precision().loss_scale().initial(), 4096);
  EXPECT_EQ(fp16.job.fsdp().strategy(), v1::STRATEGY_OPTIM_GRADS);
  for (const char* line :
       {"error: optimizer.type: the optimizer lamb is not supported", "[warmup_linear]",
        "(1e-06 -> 0) [warmup_from]", "(2 -> 1) [loss_scale_hysteresis]",
        "(parameters, optimizer -> optimizer) [offload_optimizer_only]",
        "in:5:29: error: zero_optimization.zero_quantized_weights: quantized communication",
        "curriculum_learning.enabled: curriculum learning is not supported"})
    EXPECT_TRUE(fp16.Has(line)) << line;
  EXPECT_TRUE(Result("{\"train_batch_size\": 8,\n \"zero_optimization\": {\"stage\": 3}").Has("in:2:"));
}

TEST(ConvertAccelerate, ConvertsFsdp) {
  const Result result(
      "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 2\n"
      "num_processes: 16\nmachine_rank: 0\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: "
      "true\n"
      "  fsdp_activation_checkpointing: true\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
      "  fsdp_offload_params: false\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n");
  EXPECT_EQ(result.lines,
            (Lines{
                "in: warning: 5 settings are without effect on the result, and dropped: compute_environment, "
                "fsdp_config.fsdp_auto_wrap_policy, fsdp_config.fsdp_state_dict_type, "
                "fsdp_config.fsdp_version, machine_rank [without_effect]",
                "in: warning: the file does not have model, data, train.steps, optimizer.adamw.lr; add this "
                "to the spec before you submit it [partial_spec]",
            }));
  ExpectJob(result.job, R"({
    "name": "migrated", "optimizer": {},
    "precision": {"compute": "DTYPE_BF16", "gradComm": "DTYPE_BF16"},
    "fsdp": {"strategy": "STRATEGY_OPTIM_GRADS_PARAMS", "recompute": "RECOMPUTE_FULL"},
    "parallel": {"tensor": 1, "context": 1, "pipeline": 1},
    "resources": {"nodes": 2, "ranksPerNode": 8, "device": "DEVICE_CUDA"}})");
}

TEST(ConvertAccelerate, ConvertsShardingStrategies) {
  const auto fsdp = [](const std::string& more) {
    return Result("distributed_type: FSDP\nnum_machines: 4\nfsdp_config: {" + more + "}\n").job.fsdp();
  };
  EXPECT_EQ(fsdp("fsdp_sharding_strategy: NO_SHARD").strategy(), v1::STRATEGY_NO_SHARD);
  EXPECT_TRUE(fsdp("fsdp_sharding_strategy: SHARD_GRAD_OP").keep_gathered());
  EXPECT_TRUE(fsdp("fsdp_version: 2, fsdp_reshard_after_forward: false").keep_gathered());
  EXPECT_EQ(fsdp("fsdp_sharding_strategy: HYBRID_SHARD").outer().size(), 4);
  EXPECT_FALSE(fsdp("fsdp_sharding_strategy: FULL_SHARD").has_outer());
  const Result zero(
      "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n  gradient_clipping: 0.5\n"
      "  deepspeed_config_file: ds.json\n");
  EXPECT_EQ(zero.job.fsdp().strategy(), v1::STRATEGY_OPTIM_GRADS);
  EXPECT_EQ(zero.job.optimizer().clip_norm(), 0.5);
  EXPECT_TRUE(zero.Has(
      "in:5:26: error: deepspeed_config.deepspeed_config_file: a DeepSpeed configuration in another"));
  EXPECT_TRUE(Result("deepspeed_config: {gradient_accumulation_steps: 4}\nuse_cpu: true\n")
                  .Has("the micro-batch size"));
  EXPECT_TRUE(
      Result("distributed_type: FSDP\nuse_cpu: true\n").Has("in:2:10: error: use_cpu: training on CPUs"));
  EXPECT_EQ(Result("[parallelism]\ndata_parallel_shard_degree = 8\ndata_parallel_replicate_degree = 0\n")
                .job.resources()
                .ranks_per_node(),
            8);
  EXPECT_TRUE(Result("distributed_type: XLA\n").Has("distributed_type: xla is not supported"));
}

}  // namespace
}  // namespace fsdpd
