#include "client/migrate/megatron_job.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "client/migrate/field_origins.h"
#include "client/migrate/megatron_rules.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

constexpr char kLlama8b[] = R"(
torchrun --nproc-per-node 8 pretrain_gpt.py \
  --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --use-distributed-optimizer \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 --max-position-embeddings 8192 \
  --normalization RMSNorm --swiglu --position-embedding-type rope --rotary-base 500000 --norm-epsilon 1e-5 \
  --untie-embeddings-and-output-weights --disable-bias-linear --vocab-size 128256 \
  --attention-dropout 0.0 --hidden-dropout 0.0 \
  --micro-batch-size 1 --global-batch-size 128 --train-iters 1000 --seed 7 \
  --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine --lr-warmup-iters 100 --weight-decay 0.1 \
  --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 --bf16 \
  --suggested-communication-unit-size 800000000 --megatron-fsdp-grad-comm-dtype bf16 --megatron-fsdp-main-grads-dtype fp32 \
  --recompute-granularity full --recompute-method block --recompute-num-layers 4 \
  --data-path 0.3 /data/a 0.7 /data/b
)";

struct Result {
  v1::JobSpec job;
  LocatedViolations violations;
};

Result Convert(const std::string& text) {
  Settings settings;
  Result result;
  EXPECT_TRUE(ReadSettings(text, "in", &settings).empty());
  result.violations = CheckMegatron(&settings);
  const LocatedViolations more = ConvertMegatronJob(&settings, {}, "in", &result.job);
  result.violations.insert(result.violations.end(), more.begin(), more.end());
  return result;
}

bool Has(const LocatedViolations& violations, const std::string& rule) {
  for (const LocatedViolation& fault : violations) {
    if (fault.violation.rule == rule) return true;
  }
  return false;
}

// Regression: one message reported the variable as unset, another as replaced by the agents' environment.
TEST(ConvertMegatronJob, ReportsVariableOfRuleOnce) {
  const auto faults_of = [](const std::string& connections) {
    return Convert("CUDA_DEVICE_MAX_CONNECTIONS=" + connections + " torchrun pretrain_gpt.py" + kLlama8b)
        .violations;
  };
  EXPECT_TRUE(Has(faults_of("1"), "connections"));
  EXPECT_FALSE(Has(faults_of("1"), "environment"));
  EXPECT_FALSE(Has(faults_of("8"), "connections"));
  EXPECT_TRUE(Has(faults_of("8"), "environment"));
}

// Regression: a rule read the setting, so that it was dropped silently and the job started from random
// weights.
TEST(ConvertMegatronJob, LoadsPretrainedCheckpointWithoutOptimizer) {
  const Result result = Convert(std::string(kLlama8b) + " --pretrained-checkpoint /base");
  EXPECT_EQ(result.job.checkpoint().load(), "/base");
  EXPECT_TRUE(result.job.checkpoint().has_load_optimizer());
  EXPECT_FALSE(result.job.checkpoint().load_optimizer());
  const Result both = Convert(std::string(kLlama8b) + " --load /run --pretrained-checkpoint /base");
  EXPECT_EQ(both.job.checkpoint().load(), "/run");
  EXPECT_FALSE(both.job.checkpoint().has_load_optimizer());
  EXPECT_TRUE(Has(both.violations, "pretrained_and_load"));
}

// Regression: the flag was listed as without effect, and the job loaded the optimizer state.
TEST(ConvertMegatronJob, ConvertsNoLoadOptim) {
  const std::string load = std::string(kLlama8b) + " --ckpt-format fsdp_dtensor --load /run";
  EXPECT_FALSE(Convert(load).job.checkpoint().has_load_optimizer());
  EXPECT_FALSE(Has(Convert(load).violations, "no_load_optim"));
  const Result result = Convert(load + " --no-load-optim");
  EXPECT_TRUE(result.job.checkpoint().has_load_optimizer());
  EXPECT_FALSE(result.job.checkpoint().load_optimizer());
  EXPECT_TRUE(Has(result.violations, "no_load_optim"));
  EXPECT_TRUE(Has(Convert(std::string(kLlama8b) + " --no-load-optim").violations, "without_effect"));
}

TEST(ConvertMegatronJob, ConvertsOptimizerOffload) {
  EXPECT_FALSE(Convert(kLlama8b).job.fsdp().offload().optimizer());
  std::string text = kLlama8b;
  text.insert(text.find("--bf16"), "--optimizer-cpu-offload --optimizer-offload-fraction 0.5 ");
  EXPECT_TRUE(Convert(text).job.fsdp().offload().optimizer());
}

// The job also has recomputation, which Megatron does not support with offload.
TEST(ConvertMegatronJob, ConvertsActivationOffload) {
  EXPECT_FALSE(Convert(kLlama8b).job.fsdp().offload().has_activation_layers());
  std::string text = kLlama8b;
  text.insert(text.find("--bf16"), "--cpu-offloading --cpu-offloading-num-layers 4 ");
  const v1::Fsdp fsdp = Convert(text).job.fsdp();
  EXPECT_EQ(fsdp.offload().activation_layers(), 4);
  EXPECT_EQ(fsdp.recompute(), v1::RECOMPUTE_FULL);
}

// Megatron silently offloads nothing if only one of the two settings is set.
TEST(ConvertMegatronJob, ReportsIncompleteActivationOffload) {
  for (const char* half : {" --cpu-offloading", " --cpu-offloading-num-layers 4"}) {
    const Result result = Convert(std::string(kLlama8b) + half);
    EXPECT_TRUE(Has(result.violations, "cpu_offload_half")) << half;
    EXPECT_FALSE(result.job.fsdp().offload().has_activation_layers()) << half;
  }
  EXPECT_FALSE(
      Has(Convert(std::string(kLlama8b) + " --cpu-offloading-num-layers 0").violations, "cpu_offload_half"));
}

// Regression: errors about the number were reported at --cpu-offloading.
TEST(ConvertMegatronJob, PlacesOffloadErrorsAtLayerCount) {
  const auto field_of = [](const std::string& flags, const std::string& rule) {
    Settings settings;
    v1::JobSpec job;
    EXPECT_TRUE(ReadSettings(kLlama8b + flags, "in", &settings).empty());
    LocatedViolations violations = ConvertMegatronJob(&settings, {}, "in", &job);
    for (const Violation& violation : CheckJob(job))
      violations.push_back(AtOrigin(violation, "in", &settings));
    for (const LocatedViolation& fault : violations) {
      if (fault.violation.rule == rule) return fault.violation.field;
    }
    return std::string();
  };
  const std::string on = " --cpu-offloading --cpu-offloading-num-layers ",
                    number = "--cpu-offloading-num-layers";
  EXPECT_EQ(field_of(on + "-1", "offload_layers_range"), number);
  EXPECT_EQ(field_of(on + "99", "offload_layers_above_model"), number);
  EXPECT_EQ(field_of(on + "0", "cpu_offload_half"), number);
  EXPECT_EQ(field_of(" --cpu-offloading-num-layers -1", "cpu_offload_half"), number);
  EXPECT_EQ(field_of(" --cpu-offloading", "cpu_offload_half"), "--cpu-offloading");
}

TEST(ConvertMegatronJob, LastRepeatedFlagWinsAndIsReported) {
  const Result two = Convert(std::string(kLlama8b) + " --adam-eps 1e-6 --adam-eps 1e-7");
  EXPECT_TRUE(Has(two.violations, "written_twice"));
  EXPECT_EQ(two.job.optimizer().adamw().eps(), 1e-7);
  EXPECT_FALSE(
      Has(Convert(std::string(kLlama8b) + " --adam-eps 1e-6 --adam-eps 1e-6").violations, "written_twice"));
}

// Regression: the lookup that reports a repeated flag marked it as used.
TEST(ConvertMegatronJob, RejectsUnsupportedFlagWrittenTwice) {
  EXPECT_TRUE(Has(Convert(std::string(kLlama8b) + " --mtp-num-layers 1 --mtp-num-layers 2").violations,
                  "not_supported"));
  EXPECT_FALSE(Has(Convert("srun --nodes=4 --ntasks-per-node=1 " + std::string(kLlama8b)).violations,
                   "written_twice"));
}

TEST(ConvertMegatronJob, IgnoresShellOperatorsAfterCommand) {
  for (const char* rest : {" 2>&1 | tee out.log", " > out.log", " &\nwait", "\nwait"}) {
    const Result result = Convert(std::string(kLlama8b) + " --swiglu" + rest);
    EXPECT_FALSE(Has(result.violations, "not_true_or_false")) << rest;
  }
  EXPECT_TRUE(Has(Convert(std::string(kLlama8b) + " --swiglu perhaps").violations, "not_true_or_false"));
}

// Megatron's scripts have such pairs; the shell splits each into two words.
TEST(ConvertMegatronJob, SplitsQuotedPairsInArrays) {
  const Result result =
      Convert("M=( \"--fp8-format e4m3\" \"--adam-eps 1e-7\" )\n" + std::string(kLlama8b) + " ${M[@]}");
  EXPECT_EQ(result.job.precision().compute(), v1::DTYPE_FP8);
  EXPECT_EQ(result.job.optimizer().adamw().eps(), 1e-7);
}

TEST(ConvertMegatronJob, WarnsAboutShellBranches) {
  const std::string branch = "if x; then M=(--adam-eps 1e-7); else M=(--adam-eps 1e-6); fi\n";
  EXPECT_TRUE(Has(Convert(branch + kLlama8b + " ${M[@]}").violations, "branches_read"));
  EXPECT_FALSE(Has(Convert(kLlama8b).violations, "branches_read"));
}

TEST(ConvertMegatronJob, RejectsUnknownRecompute) {
  for (const char* unknown : {" --recompute-granularity partial", " --recompute-method blokc"})
    EXPECT_TRUE(Has(Convert(std::string(kLlama8b) + unknown).violations, "recompute_known")) << unknown;
}

// Regression: a method or modules without a granularity were dropped silently.
TEST(ConvertMegatronJob, ReportsUnusedRecomputeOptions) {
  std::string without = kLlama8b;
  const std::string recompute =
      "--recompute-granularity full --recompute-method block --recompute-num-layers 4";
  without.replace(without.find(recompute), recompute.size(), "");
  const auto found = [](const std::string& text) {
    std::string names;
    const LocatedViolations violations = Convert(text).violations;
    for (const LocatedViolation& fault : violations) {
      if (fault.violation.rule == "without_effect") names = fault.violation.reason;
    }
    return names;
  };
  for (const char* flag :
       {"--recompute-method block", "--recompute-modules mlp", "--recompute-num-layers 4"}) {
    const std::string name(flag, std::string(flag).find(' '));
    EXPECT_NE(found(without + " " + flag).find(name), std::string::npos) << flag;
    EXPECT_NE(Convert(without + " " + flag).job.fsdp().recompute(), v1::RECOMPUTE_FULL);
  }
  const std::string full = without + " --recompute-granularity full ";
  EXPECT_EQ(found(full + "--recompute-method block --recompute-num-layers 4"), "");
  EXPECT_NE(found(full + "--recompute-modules mlp").find("--recompute-modules"), std::string::npos);
  EXPECT_NE(found(full + "--recompute-num-layers 4").find("--recompute-num-layers"), std::string::npos);
  EXPECT_EQ(found(without + " --recompute-granularity selective --recompute-modules mlp"), "");
}

TEST(ConvertMegatronJob, RejectsNonPositiveLearningRate) {
  for (const char* rate : {"0", "-1"}) {
    const Result result = Convert(absl::StrCat(kLlama8b, " --lr ", rate));
    EXPECT_TRUE(Has(result.violations, "lr_positive")) << rate;
    EXPECT_FALSE(Has(result.violations, "required")) << rate;
  }
}

TEST(ConvertMegatronJob, ConvertsLlama) {
  const Result result = Convert(kLlama8b);
  for (const LocatedViolation& fault : result.violations)
    EXPECT_EQ(fault.violation.level, ViolationLevel::kWarn) << Render(fault);
  v1::JobSpec want;
  const auto parsed = google::protobuf::util::JsonStringToMessage(R"({
    "name": "migrated",
    "model": {"llama": {"vocabSize": 128256, "hiddenSize": 4096, "intermediateSize": 14336, "layers": 32, "heads": 32,
                        "kvHeads": 8, "ropeTheta": 500000, "normEpsilon": 1e-5, "headSize": 128,
                        "positions": 8192}},
    "data": {"sequenceLength": 8192, "tokens": [{"path": "/data/a", "weight": 0.3, "type": "TOKEN_TYPE_MEGATRON"},
                                                {"path": "/data/b", "weight": 0.7, "type": "TOKEN_TYPE_MEGATRON"}]},
    "train": {"steps": 1000, "microBatch": 1, "globalBatch": 128, "seed": 7,
              "initial": {"std": 0.02, "scaleOutputs": true}},
    "optimizer": {"adamw": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weightDecay": 0.1}, "clipNorm": 1},
    "schedule": {"cosine": {"warmupSteps": 100}},
    "precision": {"compute": "DTYPE_BF16", "mainParams": "DTYPE_FP32", "mainGrads": "DTYPE_FP32",
                  "gradComm": "DTYPE_BF16", "moments": "DTYPE_FP32"},
    "fsdp": {"strategy": "STRATEGY_OPTIM_GRADS_PARAMS", "prefetchBytes": 800000000, "recompute": "RECOMPUTE_FULL",
             "recomputeLayers": 4},
    "parallel": {"tensor": 1, "context": 1, "expert": 1, "pipeline": 1},
    "resources": {"nodes": 1, "ranksPerNode": 8, "device": "DEVICE_CUDA"}})",
                                                                  &want);
  ASSERT_TRUE(parsed.ok()) << parsed.ToString();
  want.mutable_schedule()->mutable_cosine()->set_min_lr_ratio(3e-5 / 3e-4);
  EXPECT_EQ(result.job.DebugString(), want.DebugString());
  EXPECT_TRUE(CheckJob(result.job).empty());
}

TEST(ConvertMegatronJob, ConvertsGpt2WithPaddedVocabulary) {
  const Result result = Convert(
      "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
      "--max-position-embeddings 1024 --train-iters 10 --lr 1e-4 --mock-data --optimizer sgd");
  EXPECT_EQ(result.job.model().gpt2().vocab_size(), 50304);
  EXPECT_EQ(result.job.optimizer().sgd().momentum(), 0.9);
  EXPECT_TRUE(Has(result.violations, "dropout"));
  EXPECT_FALSE(HasErrors(CheckJob(result.job)));
}

TEST(ConvertMegatronJob, ReadsBridgeSections) {
  const Result result = Convert(R"(
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, normalization: RMSNorm, gated_linear_unit: true,
        position_embedding_type: rope, add_bias_linear: false, vocab_size: 256, seq_length: 128,
        share_embeddings_and_output_weights: true, qk_layernorm: true, attention_dropout: 0.0, hidden_dropout: 0.0}
train: {train_iters: 20, micro_batch_size: 2, global_batch_size: 32, eval_interval: 5, eval_iters: 3}
optimizer: {lr: 1e-3, adam_beta2: 0.95}
scheduler: {lr_decay_style: WSD, lr_warmup_iters: 2, lr_wsd_decay_iters: 5}
ddp: {data_parallel_sharding_strategy: optim_grads_params, num_distributed_optimizer_instances: 2,
      outer_dp_sharding_strategy: optim}
dataset: {data_path: [/data/a], valid_data_path: [/data/v]}
mixed_precision: bf16_mixed
)");
  const v1::JobSpec& job = result.job;
  EXPECT_TRUE(job.model().llama().tied_embeddings());
  EXPECT_TRUE(job.model().llama().qk_norm());
  EXPECT_EQ(job.schedule().wsd().decay_steps(), 5);
  EXPECT_EQ(job.fsdp().outer().size(), 2);
  EXPECT_EQ(job.fsdp().outer().strategy(), v1::STRATEGY_OPTIM);
  EXPECT_EQ(job.train().evaluation().samples(), 96);
  EXPECT_EQ(job.precision().compute(), v1::DTYPE_BF16);
}

TEST(ConvertMegatronJob, ConvertsLora) {
  const std::string yaml = R"(
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, normalization: RMSNorm, gated_linear_unit: true,
        position_embedding_type: rope, add_bias_linear: false, vocab_size: 256, seq_length: 128,
        share_embeddings_and_output_weights: true, attention_dropout: 0.0, hidden_dropout: 0.0}
train: {train_iters: 20, micro_batch_size: 2, global_batch_size: 32}
optimizer: {lr: 1e-4}
dataset: {data_path: [/data/a]}
mixed_precision: bf16_mixed
checkpoint: {pretrained_checkpoint: /models/llama, save: /runs/1}
peft: {dim: 8, alpha: 16, dropout: 0.0, target_modules: [linear_qkv, linear_fc2], lora_A_init_method: xavier}
)";
  const Result result = Convert(yaml);
  const v1::Lora& lora = result.job.train().lora();
  EXPECT_EQ(lora.rank(), 8);
  EXPECT_EQ(lora.alpha(), 16);
  EXPECT_THAT(lora.targets(),
              ::testing::ElementsAre("*.attention.wq", "*.attention.wk", "*.attention.wv", "*.ffn.w2"));
  EXPECT_EQ(lora.base_model(), "/models/llama");
  EXPECT_EQ(result.job.checkpoint().load(), "");
  EXPECT_TRUE(Has(result.violations, "adapter_initial"));
  EXPECT_FALSE(HasErrors(CheckJob(result.job)));
  const auto changed = [&](const char* from, const char* to) {
    return Convert(absl::StrReplaceAll(yaml, {{from, to}})).violations;
  };
  EXPECT_TRUE(Has(changed("dropout: 0.0, target", "dropout: 0.1, target"), "not_supported"));
  EXPECT_TRUE(Has(changed("linear_fc2]", "mamba_in_proj]"), "adapter_module"));
  EXPECT_TRUE(Has(changed("peft: {", "peft: {_target_: megatron.bridge.peft.dora.DoRA, "), "not_supported"));
  EXPECT_FALSE(Has(changed("peft: {", "peft: {_target_: megatron.bridge.peft.lora.LoRA, "), "not_supported"));
  EXPECT_FALSE(Convert(absl::StrReplaceAll(yaml, {{"peft: {", "other: {"}})).job.train().has_lora());
}

TEST(ConvertMegatronJob, DefaultBatchExcludesPipelineStages) {
  std::string command =
      absl::StrReplaceAll(kLlama8b, {{"--global-batch-size 128 ", ""},
                                     {"--micro-batch-size 1", "--micro-batch-size 2"},
                                     {"--nproc-per-node 8", "--nnodes 4 --nproc-per-node 8"}});
  absl::StrAppend(&command, " --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4");
  EXPECT_EQ(Convert(command).job.train().global_batch(), 2 * 32 / (2 * 4));
}

TEST(ConvertMegatronJob, ConvertsDeterministicMode) {
  EXPECT_FALSE(Convert(kLlama8b).job.train().deterministic());
  const Result result = Convert(std::string(kLlama8b) + " --deterministic-mode");
  EXPECT_TRUE(result.job.train().deterministic());
  for (const LocatedViolation& fault : result.violations)
    EXPECT_EQ(fault.violation.level, ViolationLevel::kWarn) << Render(fault);
}

TEST(ConvertMegatronJob, ConvertsFp8WithRecipe) {
  const std::string fp8 =
      std::string(kLlama8b) + " --fp8-format hybrid --fp8-recipe delayed --fp8-param-gather";
  const Result result = Convert(fp8);
  EXPECT_TRUE(Has(result.violations, "fp8_recipe"));
  EXPECT_EQ(result.job.precision().compute(), v1::DTYPE_FP8);
  EXPECT_FALSE(result.job.precision().has_fp8());
  EXPECT_TRUE(CheckJob(result.job).empty());
  const Result ends = Convert(fp8 + " --first-last-layers-bf16 --num-layers-at-start-in-bf16 2");
  const auto& kept = ends.job.precision().fp8().keep_bf16();
  EXPECT_EQ(std::vector<std::string>(kept.begin(), kept.end()),
            (std::vector<std::string>{"layer.0.*", "layer.1.*", "layer.31.*"}));
  EXPECT_TRUE(CheckJob(ends.job).empty());
  EXPECT_FALSE(Convert(std::string(kLlama8b) + " --first-last-layers-bf16").job.precision().has_fp8());
  EXPECT_TRUE(Has(Convert(fp8 + " --no-fp8-wgrad").violations, "fp8_matrix_gradients"));
  EXPECT_TRUE(Has(Convert(std::string(kLlama8b) + " --fp8-format hybird").violations, "fp8_known"));
  EXPECT_TRUE(
      Has(Convert(std::string(kLlama8b) + " --fp8-format e4m3 --fp8-recipe foo").violations, "fp8_known"));
  EXPECT_TRUE(Has(Convert(std::string(kLlama8b) + " --fp8-recipe foo").violations, "fp8_known"));
}

// A recipe of Megatron Bridge also sets layers that stay in bf16, in addition to dtypes.
TEST(ConvertMegatronJob, ConvertsNamedBridgeRecipes) {
  const std::string model =
      "model: {num_layers: 8, hidden_size: 64, num_attention_heads: 4, seq_length: 64}\n";
  const auto named = [&](const char* name) {
    return Convert(model + "mixed_precision: " + name + "\n").job.precision();
  };
  EXPECT_EQ(named("bf16_with_fp8_current_scaling_mixed").compute(), v1::DTYPE_FP8);
  EXPECT_EQ(named("bf16_with_fp8_current_scaling_mixed").main_grads(), v1::DTYPE_FP32);
  EXPECT_EQ(named("bf16_with_fp8_current_scaling_mixed").fp8().keep_bf16_size(), 2);
  EXPECT_EQ(named("nemotron_h_bf16_with_fp8_current_scaling_mixed").fp8().keep_bf16_size(), 4);
  EXPECT_EQ(named("nanov2-bf16-with-fp8-current-scaling-mixed").fp8().keep_bf16_size(), 4);
  EXPECT_EQ(named("bf16_with_mxfp8_mixed").fp8().keep_bf16_size(), 0);
  EXPECT_EQ(named("bf16_mixed").compute(), v1::DTYPE_BF16);
  const std::string defaults =
      "model: {num_layers: 8, hidden_size: 64, num_attention_heads: 4, seq_length: 64, "
      "fp8: null, fp8_recipe: delayed, first_last_layers_bf16: false, "
      "num_layers_at_start_in_bf16: 1, num_layers_at_end_in_bf16: 1}\n";
  for (const std::string& text :
       {"mixed_precision: nemotron_h_bf16_with_fp8_current_scaling_mixed\n" + defaults,
        defaults + "mixed_precision: nemotron_h_bf16_with_fp8_current_scaling_mixed\n"}) {
    EXPECT_EQ(Convert(text).job.precision().fp8().keep_bf16_size(), 4) << text;
  }
  EXPECT_TRUE(Has(Convert(model + "mixed_precision: bf16_mixd\n").violations, "recipe_known"));
  EXPECT_FALSE(Has(Convert(model + "mixed_precision: bf16_mixed\n").violations, "recipe_known"));
}

// In a dumped configuration the model's section comes last, with defaults that mixed_precision overrides.
TEST(ConvertMegatronJob, ReadsBf16LayersFromMixedPrecisionObject) {
  const std::string model =
      "model: {num_layers: 8, hidden_size: 64, num_attention_heads: 4, seq_length: 64, "
      "fp8: null, fp8_recipe: delayed, first_last_layers_bf16: false}\n";
  const auto kept = [&](const std::string& more) {
    const Result result = Convert(
        "mixed_precision: {bf16: true, fp8: hybrid, fp8_recipe: tensorwise, "
        "first_last_layers_bf16: true" +
        more + "}\n" + model);
    EXPECT_EQ(result.job.precision().compute(), v1::DTYPE_FP8) << more;
    return result.job.precision().fp8().keep_bf16_size();
  };
  EXPECT_EQ(kept(", num_layers_at_start_in_bf16: 1, num_layers_at_end_in_bf16: 2"), 3);
  EXPECT_EQ(kept(""), 0);
}

TEST(ConvertMegatronJob, AcceptsLegacyFp8Flags) {
  for (const std::string format : {"e4m3", "hybrid"}) {
    const Result result = Convert(kLlama8b + (" --fp8-" + format));
    EXPECT_EQ(result.job.precision().compute(), v1::DTYPE_FP8);
    EXPECT_TRUE(Has(result.violations, "fp8_recipe")) << format;
  }
  const Result refused = Convert(std::string(kLlama8b) + " --fp8-format e5m2");
  EXPECT_TRUE(Has(refused.violations, "fp8_known"));
  EXPECT_FALSE(Has(refused.violations, "fp8_recipe"));
}

TEST(ConvertMegatronJob, DoesNotIterateOverHugeLayerCounts) {
  const std::string fp8 = " --fp8-format e4m3 --first-last-layers-bf16";
  std::string many = kLlama8b;
  many.replace(many.find("--num-layers 32"), 15, "--num-layers 9000000000000");
  EXPECT_EQ(Convert(many + fp8).job.precision().fp8().keep_bf16_size(), 0);
  EXPECT_EQ(Convert(kLlama8b + fp8 + " --num-layers-at-end-in-bf16 9000000000000")
                .job.precision()
                .fp8()
                .keep_bf16_size(),
            32);
  EXPECT_TRUE(Has(Convert(kLlama8b + fp8 + " --num-layers-at-end-in-bf16 -1").violations, "bf16_ends_range"));
}

TEST(ConvertMegatronJob, ConvertsDocumentResets) {
  const std::string all = " --reset-position-ids --reset-attention-mask --eod-mask-loss";
  const Result whole = Convert(kLlama8b + all + " --null-tokenizer-eod-id 2");
  for (const LocatedViolation& fault : whole.violations)
    EXPECT_EQ(fault.violation.level, ViolationLevel::kWarn) << Render(fault);
  EXPECT_EQ(whole.job.data().document_end_token(), 2);
  EXPECT_TRUE(CheckJob(whole.job).empty());
  EXPECT_FALSE(Convert(kLlama8b).job.data().has_document_end_token());
  // The end token comes from the tokenizer, and the first token of a document cannot be predicted.
  EXPECT_TRUE(Has(Convert(kLlama8b + all).violations, "document_end"));
  const Result first = Convert(std::string(kLlama8b) +
                               " --reset-position-ids --reset-attention-mask --null-tokenizer-eod-id 2");
  EXPECT_TRUE(Has(first.violations, "documents_first_token"));
  EXPECT_EQ(first.job.data().document_end_token(), 2);
  for (const char* part : {" --reset-position-ids", " --reset-attention-mask", " --eod-mask-loss",
                           " --reset-position-ids --eod-mask-loss"})
    EXPECT_TRUE(Has(Convert(kLlama8b + (part + std::string(" --null-tokenizer-eod-id 2"))).violations,
                    "documents_apart"))
        << part;
}

TEST(ConvertMegatronJob, RejectsSettingsThatChangeTraining) {
  const std::string base =
      "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --train-iters 9 "
      "--lr 1e-3 --max-position-embeddings 64 ";
  EXPECT_TRUE(Has(Convert(base + "--swiglu").violations, "model_family"));
  EXPECT_TRUE(Has(Convert(base + "--lr-decay-style inverse-square-root").violations, "schedule"));
  EXPECT_TRUE(Has(Convert(base + "--exp-avg-dtype fp9").violations, "type_known"));
  EXPECT_TRUE(Has(Convert(base + "--exp-avg-dtype fp8").violations, "moments_differ"));
  EXPECT_TRUE(Has(Convert(base + "--exp-avg-dtype fp8 --exp-avg-sq-dtype fp8").violations, "fp8_moments"));
  EXPECT_TRUE(Has(Convert(base + "--exp-avg-dtype bf16").violations, "moments_differ"));
  EXPECT_TRUE(Has(Convert(base + "--fp16 --fp8-format hybrid").violations, "fp8_with_fp16"));
  EXPECT_TRUE(
      Has(Convert(base + "--exp-avg-dtype bf16 --exp-avg-sq-dtype fp32").violations, "moments_differ"));
  EXPECT_TRUE(Has(Convert("--hidden-size 64").violations, "required"));
  EXPECT_TRUE(
      Has(Convert(base + "--swiglu --normalization RMSNorm --position-embedding-type rope --vocab-size 64 "
                         "--rotary-percent 0.5")
              .violations,
          "rotary_percent"));
  EXPECT_TRUE(
      Has(Convert(base + "--swiglu --normalization RMSNorm --position-embedding-type rope").violations,
          "linear_biases"));
}

const Violation* Find(const LocatedViolations& violations, const std::string& rule) {
  for (const LocatedViolation& fault : violations) {
    if (fault.violation.rule == rule) return &fault.violation;
  }
  return nullptr;
}

TEST(ConvertMegatronJob, GroupsDroppedSettingsByEffect) {
  const Result result = Convert("--log-interval 10 --tensorboard-dir /tb --num-layers 2 --new-knob 3");
  ASSERT_NE(Find(result.violations, "without_effect"), nullptr);
  EXPECT_NE(Find(result.violations, "without_effect")->reason.find("--log-interval, --tensorboard-dir"),
            std::string::npos);
  ASSERT_NE(Find(result.violations, "not_known"), nullptr);
  EXPECT_NE(Find(result.violations, "not_known")->reason.find("--new-knob"), std::string::npos);
}

TEST(ConvertMegatronJob, ReportsAdjustments) {
  const std::string base =
      "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --train-iters 90 "
      "--lr 1e-3 --max-position-embeddings 64 --data-path /d ";
  const auto adjusted = [&](const std::string& more, const std::string& rule) {
    const Result result = Convert(base + more);
    const Violation* fault = Find(result.violations, rule);
    return fault == nullptr ? "(not found)" : fault->before + " -> " + fault->after;
  };
  // Regression: Megatron's default, exponential, silently became linear.
  EXPECT_EQ(adjusted("--lr-decay-style WSD --lr-wsd-decay-iters 9", "wsd_decay_style"),
            "exponential -> linear");
  EXPECT_EQ(
      adjusted("--lr-decay-style WSD --lr-wsd-decay-iters 9 --lr-wsd-decay-style linear", "wsd_decay_style"),
      "(not found)");
  EXPECT_EQ(adjusted("--lr-warmup-iters 9 --lr-warmup-init 1e-6", "warmup_from"), "1e-06 -> 0");
  EXPECT_EQ(adjusted("--split 949,50,1", "split"), "949,50,1 -> all");
  EXPECT_EQ(adjusted("--fp16", "loss_scale_hysteresis"), "2 -> 1");
  EXPECT_EQ(Convert(base + "--start-weight-decay 0.3 --end-weight-decay 0.3")
                .job.optimizer()
                .adamw()
                .weight_decay(),
            0.3);
  EXPECT_TRUE(Has(Convert(base + "--weight-decay-incr-style linear --start-weight-decay 0").violations,
                  "weight_decay_grows"));
  EXPECT_TRUE(Has(Convert(base + "--dataloader-type cyclic").violations, "data_order"));
  EXPECT_TRUE(Has(Convert("torchrun --nnodes 2:4 x.py " + base).violations, "torchrun_count"));
  EXPECT_EQ(adjusted("--apply-layernorm-1p", "norms_about_one"), "0 at first -> 1 at first");
  EXPECT_EQ(adjusted("--no-bias-gelu-fusion", "gelu"), "erf -> tanh");
  EXPECT_EQ(adjusted("--num-query-groups 2", "query_groups"), "2 -> heads");
  EXPECT_EQ(adjusted("--train-data-path /a /b", "data_weights"), "by length -> equal");
  EXPECT_EQ(adjusted("--lr-decay-iters 80", "decay_length"), "80 steps -> 90 steps");
  EXPECT_EQ(adjusted("--use-megatron-fsdp", "strategy_chosen"), "no_shard -> optim_grads_params");
  EXPECT_EQ(adjusted("--data-parallel-sharding-strategy optim", "strategy_chosen"), "(not found)");
}

TEST(ConvertMegatronJob, ReportsMissingSettingsOnce) {
  const Result result = Convert("--num-layers 2 --hidden-size x --lr --mock-data");
  EXPECT_TRUE(Has(result.violations, "not_a_number") && Has(result.violations, "no_value"));
  for (const Violation& violation : CheckJob(result.job, UnreadFields(result.violations))) {
    EXPECT_NE(violation.level, ViolationLevel::kError) << violation.field << " " << violation.reason;
  }
}

TEST(ConvertMegatronJob, ListsDroppedEnvironmentVariables) {
  const Result result = Convert("NCCL_IB_SL=1 HOME=/x torchrun pretrain_gpt.py --mock-data");
  ASSERT_NE(Find(result.violations, "environment"), nullptr);
  EXPECT_NE(Find(result.violations, "environment")->reason.find(": NCCL_IB_SL"), std::string::npos);
}

// Regression: the fraction was applied to the run's steps; Megatron applies it to the decay steps.
TEST(ConvertMegatronJob, WarmupFractionIsOfDecaySteps) {
  const Result result = Convert(kLlama8b + std::string(" --lr-warmup-iters 0 --lr-warmup-fraction 0.01 "
                                                       "--lr-decay-iters 800"));
  EXPECT_EQ(result.job.schedule().cosine().warmup_steps(), 8);
}

TEST(ConvertMegatronJob, ConvertsInitialValues) {
  const Result result =
      Convert(kLlama8b + std::string(" --init-method-std 0.0134 --embedding-init-method-std 1 "
                                     "--decoupled-lr 6e-4"));
  const v1::InitialValues& initial = result.job.train().initial();
  EXPECT_EQ(initial.std(), 0.0134);
  EXPECT_EQ(initial.embedding_std(), 1);
  EXPECT_TRUE(initial.scale_outputs());
  // Such an embedding has no weight decay, and also the decoupled learning rate.
  ASSERT_EQ(result.job.optimizer().groups_size(), 2);
  EXPECT_EQ(result.job.optimizer().groups(0).params(0), "embedding.*");
  EXPECT_EQ(result.job.optimizer().groups(0).weight_decay(), 0);
  EXPECT_EQ(result.job.optimizer().groups(0).lr_scale(), 2);
  EXPECT_EQ(result.job.optimizer().groups(1).lr_scale(), 2);
  EXPECT_FALSE(HasErrors(CheckJob(result.job)));
}

// Regression: a vocabulary that the run reports as padded was padded again.
TEST(ConvertMegatronJob, ChoosesVocabularySize) {
  const auto size = [](const std::string& more) {
    return Convert(kLlama8b + more).job.model().llama().vocab_size();
  };
  EXPECT_EQ(size(" --vocab-size 100 "), 128);
  EXPECT_EQ(size(" --vocab-size 100 --padded-vocab-size 104"), 104);
  const auto bridge = [](const std::string& text) {
    return Convert("model: {gated_linear_unit: true, vocab_size: 100, should_pad_vocab: false}\n" + text)
        .job.model()
        .llama()
        .vocab_size();
  };
  EXPECT_EQ(bridge(""), 100);
  EXPECT_EQ(bridge("tokenizer: {vocab_size: 99}"), 100);
  EXPECT_EQ(bridge("tokenizer: {vocab_size: 99, use_tokenizer_vocab_size: true}"), 99);
}

TEST(ConvertMegatronJob, RejectsModelsOutsideFamilies) {
  const std::string gpt2 =
      "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --train-iters 9 --lr 1e-3 "
      "--max-position-embeddings 64 ";
  EXPECT_FALSE(Has(Convert(gpt2).violations, "model_family"));
  EXPECT_TRUE(Has(Convert(gpt2 + "--disable-bias-linear").violations, "model_family"));
  EXPECT_TRUE(Has(Convert(gpt2 + "--group-query-attention --num-query-groups 2").violations, "model_family"));
  EXPECT_TRUE(
      Has(Convert("model: {gated_linear_unit: true, activation_func: torch.nn.functional.gelu}").violations,
          "activation"));
  EXPECT_TRUE(Has(Convert("torchrun pretrain_bert.py " + gpt2).violations, "script"));
}

}  // namespace
}  // namespace fsdpd
