// Tests of complete runs: every published option of Megatron-LM and setting of Megatron Bridge is converted
// or on exactly one list, and published examples produce the expected job and messages.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <set>

#include "client/migrate/megatron_job.h"
#include "client/migrate/megatron_options.h"
#include "client/migrate/megatron_rules.h"
#include "client/migrate/option_names.h"
#include "client/migrate/testing/megatron_option_names.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

struct Result {
  v1::JobSpec job;
  LocatedViolations violations;
};

Result Convert(const std::string& text) {
  Settings settings;
  Result result;
  result.violations = ReadSettings(text, "in", &settings);
  EXPECT_TRUE(result.violations.empty()) << Render(result.violations.front());
  result.violations = CheckMegatron(&settings);
  const LocatedViolations more = ConvertMegatronJob(&settings, {}, "in", &result.job);
  result.violations.insert(result.violations.end(), more.begin(), more.end());
  return result;
}

// Returns the reason of the rule's warning, or an empty string.
std::string Warning(const LocatedViolations& violations, const std::string& rule) {
  for (const LocatedViolation& fault : violations) {
    if (fault.violation.rule == rule) return fault.violation.reason;
  }
  return "";
}

TEST(PublishedOptions, EveryOptionIsHandledOnce) {
  for (const absl::string_view name : kMegatronOptions) {
    const std::string flag = absl::StrCat("--", absl::StrReplaceAll(name, {{"_", "-"}}));
    EXPECT_EQ(Warning(Convert("--bf16 " + flag + " 1").violations, "not_known"), "") << flag;
  }
  for (const absl::string_view name : kBridgeSettings) {
    const size_t dot = name.find('.');
    const std::string text = absl::StrCat(name.substr(0, dot), ":\n  ", name.substr(dot + 1), ": 7\n");
    EXPECT_EQ(Warning(Convert(text).violations, "not_known"), "") << name;
  }
}

// Canonical names of all published options.
std::set<std::string> PublishedNames() {
  std::set<std::string> names;
  for (const absl::string_view name : kMegatronOptions) names.insert(NameOfFlag(std::string(name)).name);
  for (const absl::string_view name : kBridgeSettings) {
    const std::pair<std::string, std::string> key = absl::StrSplit(name, absl::MaxSplits('.', 1));
    names.insert(NameOfKey(key.first, key.second).name);
  }
  return names;
}

// A listed name that is not published is a typo.
TEST(PublishedOptions, EveryListedNameIsPublished) {
  const std::set<std::string> names = PublishedNames();
  const auto expect = [&](absl::string_view entry) {
    absl::string_view beginning = entry;
    if (!absl::ConsumeSuffix(&beginning, "*")) {
      EXPECT_EQ(names.count(std::string(entry)), 1u) << entry;
      return;
    }
    const auto first = names.lower_bound(std::string(beginning));
    EXPECT_TRUE(first != names.end() && absl::StartsWith(*first, beginning)) << entry;
  };
  const OptionTable& table = TableOf(Trainer::kMegatron);
  for (const auto& [entry, unused] : table.ignored) expect(entry);
  for (const auto& [entry, unused] : table.refused) expect(entry);
}

// Messages of the conversion and of the resulting spec, without lists of names: "error fp4_unsupported
// --fp4-format", "adjust warmup_from --lr-warmup-init 3.9e-07 -> 0".
std::set<std::string> Messages(const Result& result) {
  std::set<std::string> messages;
  const auto add = [&](const Violation& violation) {
    for (const char* names : {"without_effect", "of_launcher", "environment"}) {
      if (violation.rule == names) return;
    }
    const char* level = violation.level == ViolationLevel::kError    ? "error "
                        : violation.level == ViolationLevel::kAdjust ? "adjust "
                                                                     : "warn ";
    std::string line = absl::StrCat(level, violation.rule);
    if (!violation.field.empty()) absl::StrAppend(&line, " ", violation.field);
    if (violation.level == ViolationLevel::kAdjust) {
      absl::StrAppend(&line, " ", violation.before, " -> ", violation.after);
    }
    messages.insert(std::move(line));
  };
  for (const LocatedViolation& fault : result.violations) add(fault.violation);
  for (const Violation& violation : CheckJob(result.job)) add(violation);
  return messages;
}

v1::JobSpec JobOf(const std::string& json) {
  v1::JobSpec job;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &job);
  EXPECT_TRUE(parsed.ok()) << parsed.ToString();
  return job;
}

using Lines = std::set<std::string>;

// Megatron-LM's examples/megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh as it expands for one node with mock
// data, at 12db36f2fc63c40227f136d326cae434e38a616d.
constexpr char kLlama3[] = R"(
python -m torch.distributed.run --nproc_per_node 8 --nnodes 1 --node_rank 0 --master_addr localhost \
  --master_port 29500 pretrain_gpt.py \
  --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 \
  --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0 \
  --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --normalization RMSNorm --init-method-std 0.0134 \
  --attention-backend fused --apply-layernorm-1p --untie-embeddings-and-output-weights --disable-bias-linear \
  --micro-batch-size 1 --global-batch-size 128 --train-samples 1953125000 --lr-decay-samples 1949218748 \
  --lr-warmup-samples 3906252 --lr 0.00015 --min-lr 0.00001 --decoupled-lr 5.0e-4 --decoupled-min-lr 4.5e-5 \
  --lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --bf16 \
  --cross-entropy-loss-fusion --no-check-for-nan-in-loss-and-grad --manual-gc --empty-unused-memory-level 1 \
  --exit-duration-in-mins 235 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params \
  --no-gradient-accumulation-fusion --calculate-per-token-loss --init-model-with-meta-device \
  --ckpt-format fsdp_dtensor --use-nccl-ub --fsdp-double-buffer --fsdp-manual-registration \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --fp8-format hybrid --fp8-amax-history-len 1024 --fp8-amax-compute-algo max --fp8-param-gather \
  --tensor-model-parallel-size 1 --context-parallel-size 1 --sequence-parallel \
  --mock-data --tokenizer-type NullTokenizer --vocab-size 128256 --data-cache-path /runs/cache \
  --tiktoken-pattern v2 --split '99,1,0' --no-create-attention-mask-in-dataloader --no-mmap-bin-files \
  --num-workers 1 --log-interval 1 --eval-iters 32 --eval-interval 100 --save-interval 1000 --log-throughput \
  --logging-level 20 --distributed-timeout-minutes 60 --save /runs/ckpt --load /runs/ckpt --tensorboard-dir /tb
)";

TEST(PublishedRuns, Llama3Of8BMessages) {
  EXPECT_EQ(Messages(Convert(kLlama3)),
            (Lines{
                "adjust decay_length --lr-decay-samples 15228271 steps -> 15258789 steps",
                "adjust fp8_recipe --fp8-format hybrid -> e4m3, one scale per row",
                "adjust nccl_buffers --fsdp-double-buffer true -> always",
                "adjust nccl_buffers --use-nccl-ub true -> always",
                "adjust no_evaluation --eval-interval every 100 steps -> never",
                "adjust norms_about_one --apply-layernorm-1p 0 at first -> 1 at first",
                "adjust own_least_rate --decoupled-min-lr 4.5e-05 -> 3.33333e-05",
                "adjust own_rate --decoupled-lr 0.0005 -> lr_scale 3.33333",
                "adjust samples_are_steps --lr-decay-samples 1949218748 samples -> 15228271 steps",
                "adjust samples_are_steps --lr-warmup-samples 3906252 samples -> 30517 steps",
                "adjust samples_are_steps --train-samples 1953125000 samples -> 15258789 steps",
                "warn gradient_types --bf16",
                "warn one_step_on",
            }));
}

TEST(PublishedRuns, ConvertsLlama3Of8B) {
  const Result result = Convert(kLlama3);
  for (const std::string& line : Messages(result)) EXPECT_FALSE(absl::StartsWith(line, "error")) << line;
  v1::JobSpec want = JobOf(R"({
    "name": "migrated",
    "model": {"llama": {"vocabSize": 128256, "hiddenSize": 4096, "intermediateSize": 14336, "layers": 32, "heads": 32,
                        "kvHeads": 8, "ropeTheta": 1000000, "normEpsilon": 1e-5, "headSize": 128,
                        "positions": 8192}},
    "data": {"synthetic": {}, "sequenceLength": 8192},
    "train": {"steps": 15258789, "microBatch": 1, "globalBatch": 128, "seed": 1234,
              "initial": {"std": 0.0134, "scaleOutputs": true}},
    "optimizer": {"adamw": {"lr": 1.5e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weightDecay": 0.1}, "clipNorm": 1,
                  "groups": [{"params": ["embedding.weight", "head.output"]}]},
    "schedule": {"cosine": {"warmupSteps": 30517}},
    "precision": {"compute": "DTYPE_FP8", "mainParams": "DTYPE_FP32", "mainGrads": "DTYPE_FP32",
                  "gradComm": "DTYPE_FP32", "moments": "DTYPE_FP32"},
    "fsdp": {"strategy": "STRATEGY_OPTIM_GRADS_PARAMS", "recompute": "RECOMPUTE_NONE"},
    "parallel": {"tensor": 1, "context": 1, "expert": 1, "pipeline": 1},
    "checkpoint": {"dir": "/runs/ckpt", "everySteps": 1000, "load": "/runs/ckpt"},
    "resources": {"nodes": 1, "ranksPerNode": 8, "device": "DEVICE_CUDA"}})");
  want.mutable_schedule()->mutable_cosine()->set_min_lr_ratio(1e-5 / 1.5e-4);
  want.mutable_optimizer()->mutable_groups(0)->set_lr_scale(5e-4 / 1.5e-4);
  EXPECT_EQ(result.job.DebugString(), want.DebugString());
}

// Settings of sbatch_mfsdp_deepseek_v3.sh at 861b2e8e6be23fee341f72c2df8c19c671777474, unchanged.
constexpr char kDeepSeek[] = R"(
srun --mpi=pmix -l --container-image=nemo.sqsh --nodes 64 --ntasks-per-node 8 python /opt/megatron/pretrain_gpt.py \
  --distributed-timeout-minutes 60 --tensor-model-parallel-size 1 --expert-model-parallel-size 8 \
  --expert-tensor-parallel-size 1 --context-parallel-size 1 --use-distributed-optimizer --overlap-grad-reduce \
  --overlap-param-gather --use-mcore-models --sequence-parallel --use-flash-attn --disable-bias-linear \
  --micro-batch-size 4 --global-batch-size 2048 --train-samples 585937500 --exit-duration-in-mins 220 \
  --no-check-for-nan-in-loss-and-grad --manual-gc --manual-gc-interval 10 --recompute-granularity selective \
  --recompute-modules mlp moe mla_up_proj layernorm --transformer-impl transformer_engine --seq-length 4096 \
  --data-cache-path /out/cache --tokenizer-type HuggingFaceTokenizer --tokenizer-model deepseek-ai/DeepSeek-V3 \
  --data-path /data/text --split 99,1,0 --no-mmap-bin-files --no-create-attention-mask-in-dataloader \
  --num-workers 6 --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 \
  --kv-channels 128 --max-position-embeddings 4096 --position-embedding-type rope --rotary-base 10000 \
  --make-vocab-size-divisible-by 3232 --normalization RMSNorm --norm-epsilon 1e-6 --swiglu \
  --untie-embeddings-and-output-weights --multi-latent-attention --attention-dropout 0.0 --hidden-dropout 0.0 \
  --clip-grad 1.0 --weight-decay 0.1 --qk-layernorm --lr-decay-samples 584765624 --lr-warmup-samples 1536000 \
  --lr-warmup-init 3.9e-7 --lr 3.9e-6 --min-lr 3.9e-7 --lr-decay-style cosine --adam-beta1 0.9 --adam-beta2 0.95 \
  --num-experts 256 --moe-layer-freq [0]*3+[1]*58 --moe-ffn-hidden-size 2048 \
  --moe-shared-expert-intermediate-size 2048 --moe-router-load-balancing-type seq_aux_loss --moe-router-topk 8 \
  --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep --moe-router-pre-softmax \
  --moe-grouped-gemm --moe-aux-loss-coeff 1e-4 --moe-router-group-topk 4 --moe-router-num-groups 8 \
  --moe-router-topk-scaling-factor 2.5 --moe-router-score-function sigmoid --moe-router-enable-expert-bias \
  --moe-router-bias-update-rate 1e-3 --moe-router-dtype fp32 --moe-permute-fusion \
  --moe-router-force-load-balancing --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 \
  --qk-pos-emb-head-dim 64 --v-head-dim 128 --rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0 \
  --mtp-num-layers 1 --mtp-loss-scaling-factor 0.1 --eval-iters 32 --eval-interval 100 --auto-detect-ckpt-format \
  --load /out/ckpt --save /out/ckpt --save-interval 100 --dist-ckpt-strictness log_all --init-method-std 0.02 \
  --log-timers-to-tensorboard --log-memory-to-tensorboard --log-num-zeros-in-grad --log-params-norm \
  --log-validation-ppl-to-tensorboard --log-throughput --log-interval 1 --logging-level 40 --tensorboard-dir /tb \
  --bf16 --enable-experimental --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params \
  --no-gradient-accumulation-fusion --calculate-per-token-loss --init-model-with-meta-device \
  --ckpt-format fsdp_dtensor --fsdp-double-buffer --use-nccl-ub --megatron-fsdp-grad-comm-dtype bf16 \
  --megatron-fsdp-main-grads-dtype bf16
)";

TEST(PublishedRuns, RejectsDeepSeekV3WithMultiTokenPrediction) {
  EXPECT_EQ(Messages(Convert(kDeepSeek)),
            (Lines{
                "adjust decay_length --lr-decay-samples 285530 steps -> 286102 steps",
                "adjust expert_balance_of_choices --moe-aux-loss-coeff highest scores -> chosen experts",
                "adjust nccl_buffers --fsdp-double-buffer true -> always",
                "adjust nccl_buffers --use-nccl-ub true -> always",
                "adjust no_evaluation --eval-interval every 100 steps -> never",
                "adjust router_chooses --moe-router-force-load-balancing true -> false",
                "adjust samples_are_steps --lr-decay-samples 584765624 samples -> 285530 steps",
                "adjust samples_are_steps --lr-warmup-samples 1536000 samples -> 750 steps",
                "adjust samples_are_steps --train-samples 585937500 samples -> 286102 steps",
                "adjust split --split 99,1,0 -> all",
                "adjust warmup_from --lr-warmup-init 3.9e-07 -> 0",
                "error not_supported --mtp-num-layers",
                "error required vocab_size",
                "error vocab_size_range model.llama.vocab_size",
                "warn gradient_types --megatron-fsdp-main-grads-dtype",
                "warn one_step_on",
            }));
}

TEST(PublishedRuns, ConvertsDeepSeekV3WithoutMultiTokenPrediction) {
  const std::string text = absl::StrReplaceAll(
      kDeepSeek, {{"--mtp-num-layers 1 --mtp-loss-scaling-factor 0.1", "--vocab-size 129280"}});
  const Result result = Convert(text);
  for (const LocatedViolation& fault : result.violations)
    EXPECT_NE(fault.violation.level, ViolationLevel::kError) << Render(fault);
  for (const Violation& fault : CheckJob(result.job, {}))
    EXPECT_NE(fault.level, ViolationLevel::kError) << fault.reason;
  v1::Llama want;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(R"({
      "vocabSize": 129280, "hiddenSize": 7168, "intermediateSize": 18432, "layers": 61, "heads": 128,
      "positions": 4096, "ropeTheta": 10000, "normEpsilon": 1e-6,
      "latentAttention": {"rank": 512, "queryRank": 1536, "plainHeadSize": 128, "rotaryHeadSize": 64,
                          "valueHeadSize": 128},
      "ropeScaling": {"factor": 40, "lowFreqFactor": 1, "highFreqFactor": 32, "originalPositions": 4096,
                      "yarn": {"mscale": 1, "mscaleAllDim": 1}},
      "experts": {"count": 256, "perToken": 8, "intermediateSize": 2048, "denseLayers": 3, "balanceLoss": 1e-4,
                  "scores": "SCORES_SIGMOID", "normalized": true, "selectionBias": true, "biasUpdateRate": 1e-3,
                  "groups": 8, "groupsPerToken": 4, "weightScale": 2.5, "sharedIntermediateSize": 2048}
      })",
                                                          &want)
                  .ok());
  EXPECT_EQ(result.job.model().llama().DebugString(), want.DebugString());
}

// qwen3-30b-a3b.gbs128_mbs4_seq4096_n2_mfsdp2_mxfp8_wandb.sh at ff00ae36f52a2f9bc8fbb39491cd68d90b82e050.
constexpr char kQwen3[] = R"(
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export CUDA_DEVICE_MAX_CONNECTIONS=8
srun --nodes=2 --ntasks-per-node=4 python3 -u pretrain_gpt.py --seq-length 4096 --max-position-embeddings 4096 \
  --tensor-model-parallel-size 1 --context-parallel-size 1 --pipeline-model-parallel-size 1 \
  --expert-tensor-parallel-size 1 --use-mcore-models --use-flash-attn --no-check-for-nan-in-loss-and-grad \
  --manual-gc --manual-gc-interval 10 --recompute-granularity selective --recompute-modules moe_act \
  --transformer-impl transformer_engine --apply-layernorm-1p --tokenizer-type HuggingFaceTokenizer \
  --tokenizer-model /data/tokenizer --data-path /data/c4 --data-cache-path /cache --num-layers 48 \
  --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --norm-epsilon 1e-06 \
  --normalization RMSNorm --attention-dropout 0.0 --hidden-dropout 0.0 --position-embedding-type rope \
  --rotary-base 1000000 --swiglu --untie-embeddings-and-output-weights --disable-bias-linear \
  --group-query-attention --num-query-groups 4 --kv-channels 128 --make-vocab-size-divisible-by 1187 \
  --qk-layernorm --attention-backend fused --rotary-percent 1.0 --rotary-seq-len-interpolation-factor 1 \
  --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --lr 0.00012 --min-lr 1.2e-05 \
  --lr-decay-samples 255126953 --lr-warmup-samples 162761 --lr-decay-style cosine --init-method-std 0.02 \
  --ckpt-format fsdp_dtensor --train-samples 268554688 --exit-duration-in-mins 230 --split 99,1,0 --eval-iters 32 \
  --eval-interval 100 --log-interval 1 --distributed-timeout-minutes 60 --no-mmap-bin-files \
  --no-create-attention-mask-in-dataloader --log-throughput --bf16 --num-workers 6 --enable-experimental \
  --auto-detect-ckpt-format --save /out --save-interval 500 --load /out --dist-ckpt-strictness log_all \
  --fp8-recipe mxfp8 --fp8-format e4m3 --overlap-grad-reduce --overlap-param-gather --use-megatron-fsdp \
  --data-parallel-sharding-strategy optim_grads_params --calculate-per-token-loss --init-model-with-meta-device \
  --grad-reduce-in-bf16 --use-distributed-optimizer --num-experts 128 --moe-ffn-hidden-size 768 \
  --moe-router-load-balancing-type aux_loss --moe-router-topk 8 --moe-aux-loss-coeff 0.001 --moe-grouped-gemm \
  --moe-router-dtype fp32 --moe-permute-fusion --moe-router-fusion --moe-router-force-load-balancing \
  --moe-token-dispatcher-type alltoall --sequence-parallel --cross-entropy-loss-fusion \
  --cross-entropy-fusion-impl te --wandb-project megatron-fsdp --wandb-exp-name q --wandb-save-dir /out/wandb \
  --log-timers-to-tensorboard --log-memory-to-tensorboard --log-num-zeros-in-grad --log-params-norm \
  --log-validation-ppl-to-tensorboard --tensorboard-dir /out/tb --micro-batch-size 4 --fp8-param-gather \
  --expert-model-parallel-size 4 --global-batch-size 128 --use-megatron-fsdp-v2
)";

TEST(PublishedRuns, RejectsQwen3Of30BWithoutVocabularySize) {
  EXPECT_EQ(
      Messages(Convert(kQwen3)),
      (Lines{
          "adjust decay_length --lr-decay-samples 1993179 steps -> 2098083 steps",
          "adjust expert_balance_by_sample --moe-router-load-balancing-type each micro-batch -> each sample",
          "adjust fp8_recipe --fp8-format e4m3, mxfp8 -> e4m3, one scale per row",
          "adjust no_evaluation --eval-interval every 100 steps -> never",
          "adjust norms_about_one --apply-layernorm-1p 0 at first -> 1 at first",
          "adjust router_chooses --moe-router-force-load-balancing true -> false",
          "adjust samples_are_steps --lr-decay-samples 255126953 samples -> 1993179 steps",
          "adjust samples_are_steps --lr-warmup-samples 162761 samples -> 1271 steps",
          "adjust samples_are_steps --train-samples 268554688 samples -> 2098083 steps",
          "adjust split --split 99,1,0 -> all",
          "error required vocab_size",
          "error vocab_size_range model.llama.vocab_size",
          "warn one_step_on",
          "warn version_two --use-megatron-fsdp-v2",
      }));
}

// Megatron Bridge's recipe for Llama 3.2 1B (recipes/llama/llama3.py at
// 0d5f5558c16fc7b3eec45698768522e74f1a87a2, common.py at 0eca073e6f1415c0e62a608b70b96f712f0d364d, the sizes
// from its Hugging Face configuration), as a run_config.yaml with all defaults of the classes.
constexpr char kBridgeLlama[] = R"(
_target_: megatron.bridge.training.config.ConfigContainer
checkpoint: {_target_: megatron.bridge.training.config.CheckpointConfig, async_save: false, ckpt_format: torch_dist,
  fully_parallel_save: true, load: null, most_recent_k: -1, save: null, save_interval: 500, save_optim: true,
  strict_fsdp_dtensor_load: false, replication_factor: 2, dist_ckpt_strictness: assume_ok_unexpected}
comm_overlap: null
dataset: {_target_: megatron.bridge.training.config.GPTDatasetConfig, blend: null, blend_per_split: null,
  add_extra_token_to_sequence: true, create_attention_mask: true, data_sharding: true, dataloader_type: single,
  drop_last_partial_validation_sequence: true, eod_mask_loss: false, mid_level_dataset_surplus: 0.005,
  mmap_bin_files: true, mock: true, num_dataset_builder_threads: 1, num_workers: 8, path_to_cache: null,
  persistent_workers: true, pin_memory: true, random_seed: 1234, reset_attention_mask: false,
  reset_position_ids: false, seq_length: 8192, skip_getting_attention_mask_from_dataset: true, split: '9999,8,2'}
ddp: {_target_: megatron.core.distributed.DistributedDataParallelConfig, average_in_collective: true,
  bucket_size: null, check_for_nan_in_grad: true, data_parallel_sharding_strategy: no_shard,
  fp8_param_gather: false, grad_reduce_in_fp32: true, gradient_reduce_div_fusion: true, nccl_ub: false,
  megatron_fsdp_grad_comm_dtype: null, megatron_fsdp_main_params_dtype: {_call_: false, _target_: torch.float32},
  num_distributed_optimizer_instances: 1, outer_dp_sharding_strategy: no_shard, overlap_grad_reduce: true,
  overlap_param_gather: true, preserve_fp32_weights: true, use_distributed_optimizer: true,
  use_megatron_fsdp: false}
dist: {_target_: megatron.bridge.training.config.DistributedInitConfig, distributed_backend: nccl,
  distributed_timeout_minutes: 10, lazy_mpu_init: false, local_rank: 0, use_megatron_fsdp: false,
  use_torch_fsdp2: false, use_tp_pp_dp_mapping: false, use_gloo_process_groups: true}
ft: null
logger: {_target_: megatron.bridge.training.config.LoggerConfig, filter_warnings: true, log_interval: 10,
  log_timers_to_tensorboard: true, mlflow_tags: null, runtime_time_unit: hours, tensorboard_dir: /out/tb}
mixed_precision: {_target_: megatron.bridge.training.mixed_precision.MixedPrecisionConfig, autocast_dtype: null,
  autocast_enabled: false, bf16: true, first_last_layers_bf16: false, fp16: false, fp32: false, fp4: null,
  fp4_recipe: nvfp4, fp8: null, fp8_amax_compute_algo: most_recent, fp8_param: false, fp8_param_gather: false,
  fp8_recipe: tensorwise, grad_reduce_in_fp32: true, hysteresis: 2, initial_loss_scale: 4294967296,
  loss_scale: null, loss_scale_window: 1000, min_loss_scale: 1.0,
  params_dtype: {_call_: false, _target_: torch.bfloat16}, reuse_grad_buf_for_mxfp8_param_ag: false}
model: {_target_: megatron.bridge.models.llama.Llama32ModelProvider1B,
  activation_func: {_call_: false, _target_: torch.nn.functional.silu}, activation_func_clamp_value: null,
  add_bias_linear: false, add_qkv_bias: false, apply_rope_fusion: true, attention_dropout: 0.0,
  attention_backend: null, attention_output_gate: false, attention_softmax_in_fp32: false, bf16: false,
  bias_activation_fusion: true, calculate_per_token_loss: false, context_parallel_size: 1, cpu_offloading: false,
  cross_entropy_fusion_impl: te, cross_entropy_loss_fusion: true, csa_window_size: 128, cuda_graph_impl: none,
  cuda_graph_scope: full, embedding_init_method_std: null, expert_model_parallel_size: 1, ffn_hidden_size: 8192,
  fine_grained_activation_offloading: false, fp16: false, fp16_lm_cross_entropy: false, fp8: null,
  fp8_recipe: delayed, gated_linear_unit: true, generation_config: {_call_: true,
  _target_: transformers.GenerationConfig.from_dict, config_dict: {temperature: 0.6, top_p: 0.9}},
  glu_linear_offset: 0.0, gradient_accumulation_fusion: true, heterogeneous_block_specs: false,
  hidden_dropout: 0.0, hidden_size: 2048, init_method: {_args_: [], _partial_: true,
  _target_: torch.nn.init.normal_, mean: 0.0, std: 0.02}, init_method_std: 0.02,
  init_model_with_meta_device: false, kitchen_attention_backend: sdpa, kv_channels: 64, layernorm_epsilon: 1.0e-05,
  layernorm_zero_centered_gamma: false, linear_attention_freq: null, linear_key_head_dim: 128,
  make_vocab_size_divisible_by: 128, mamba_state_dim: 128, max_position_embeddings: 131072, mlp_chunks_for_training: 1,
  moe_router_topk: 2, moe_single_grouped_weight: false, moe_token_dispatcher_type: alltoall, mtp_enabled: false,
  mtp_loss_scaling_factor: 0.1, mtp_num_layers: null, multi_latent_attention: false, mup_width_mult: 1.0,
  mup_attn_scale_power: 1.0, normalization: RMSNorm, num_attention_heads: 32, num_layers: 16,
  num_moe_experts: null, num_query_groups: 8, num_residual_streams: 4, perform_initialization: true,
  pipeline_model_parallel_size: 1, position_embedding_type: rope, qk_clip: false, qk_clip_alpha: 0.5,
  qk_layernorm: false, recompute_granularity: null, rope_scaling: true, rope_scaling_factor: 32.0,
  rotary_base: 500000, rotary_interleaved: false, rotary_percent: 1.0, seq_length: 8192,
  sequence_parallel: false, share_embeddings_and_output_weights: true, should_pad_vocab: true,
  softmax_scale: null, softmax_type: vanilla, tensor_model_parallel_size: 1, use_cpu_initialization: false,
  use_mup: false, vocab_size: 128256, window_size: null}
optimizer: {_target_: megatron.bridge.training.config.OptimizerConfig, adam_beta1: 0.9, adam_beta2: 0.95,
  adam_eps: 1.0e-05, bf16: true, clip_grad: 1.0, decoupled_lr: null, decoupled_weight_decay: true,
  exp_avg_dtype: {_call_: false, _target_: torch.float32}, exp_avg_sq_dtype: {_call_: false, _target_: torch.float32},
  fp16: false, lr: 0.0003, main_grads_dtype: {_call_: false, _target_: torch.float32}, min_lr: 3.0e-05,
  muon_momentum: 0.95, muon_split_qkv: true, optimizer: adam, overlap_param_gather: true, sgd_momentum: 0.9,
  use_distributed_optimizer: true, use_precision_aware_optimizer: false, weight_decay: 0.1}
peft: null
profiling: {_target_: megatron.bridge.training.config.ProfilingConfig, profile_ranks: [0], use_nsys_profiler: false}
rerun_state_machine: {check_for_nan_in_loss: true, rerun_mode: disabled, spiky_loss_factor: 10.0}
rng: {_target_: megatron.bridge.training.config.RNGConfig, data_parallel_random_init: false, seed: 1234}
scheduler: {_target_: megatron.bridge.training.config.SchedulerConfig, end_weight_decay: 0.033,
  lr_decay_iters: 1168251, lr_decay_style: cosine, lr_warmup_init: 0.0, lr_warmup_iters: 2000,
  override_opt_param_scheduler: true, start_weight_decay: 0.033, weight_decay_incr_style: constant,
  lr_wsd_decay_style: exponential}
tokenizer: {_target_: megatron.bridge.training.tokenizers.config.TokenizerConfig, make_vocab_size_divisible_by: 1,
  rank: 0, tensor_model_parallel_size: 1, tokenizer_model: null, tokenizer_type: NullTokenizer,
  use_tokenizer_vocab_size: false, vocab_size: 128256}
train: {_target_: megatron.bridge.training.config.TrainingConfig, decrease_batch_size_if_needed: false,
  empty_unused_memory_level: 0, global_batch_size: 512, iterations_to_skip: [], manual_gc: true,
  manual_gc_eval: 100, manual_gc_interval: 100, micro_batch_size: 1, rampup_batch_size: null, train_iters: 1168251,
  train_samples: null}
validation: {eval_interval: 2000, eval_iters: 32, full_validation: false, skip_train: false, test_mode: false}
)";

TEST(PublishedRuns, ConvertsBridgeLlama32Of1B) {
  const Result result = Convert(kBridgeLlama);
  EXPECT_EQ(Messages(result),
            (Lines{
                "adjust average_in_collective_off ddp.average_in_collective true -> false",
                "adjust gradient_accumulation_fusion_off model.gradient_accumulation_fusion true -> false",
                "adjust no_evaluation validation.eval_interval every 2000 steps -> never",
                "adjust per_token_loss model.calculate_per_token_loss false -> true",
                "adjust strategy_chosen dist.use_megatron_fsdp optim -> optim_grads_params",
                "warn no_data data_path",
                "warn one_step_on",
            }));
  EXPECT_EQ(result.job.DebugString(), JobOf(R"({
    "name": "migrated",
    "model": {"llama": {"vocabSize": 128256, "hiddenSize": 2048, "intermediateSize": 8192, "layers": 16, "heads": 32,
                        "kvHeads": 8, "ropeTheta": 500000, "normEpsilon": 1e-5, "tiedEmbeddings": true,
                        "headSize": 64, "ropeScaling": {"factor": 32}, "positions": 131072}},
    "data": {"synthetic": {}, "sequenceLength": 8192},
    "train": {"steps": 1168251, "microBatch": 1, "globalBatch": 512, "seed": 1234,
              "initial": {"std": 0.02, "scaleOutputs": true}},
    "optimizer": {"adamw": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-5, "weightDecay": 0.033}, "clipNorm": 1},
    "schedule": {"cosine": {"warmupSteps": 2000, "minLrRatio": 0.1}},
    "precision": {"compute": "DTYPE_BF16", "mainParams": "DTYPE_FP32", "mainGrads": "DTYPE_FP32",
                  "gradComm": "DTYPE_FP32", "moments": "DTYPE_FP32"},
    "fsdp": {"strategy": "STRATEGY_OPTIM_GRADS_PARAMS", "recompute": "RECOMPUTE_NONE"},
    "parallel": {"tensor": 1, "context": 1, "expert": 1, "pipeline": 1},
    "resources": {"nodes": 1, "ranksPerNode": 8, "device": "DEVICE_CUDA"}})")
                                          .DebugString());
}

TEST(PublishedRuns, ConvertsTensorParallelism) {
  std::string text = kBridgeLlama;
  const std::string from = " tensor_model_parallel_size: 1", to = " tensor_model_parallel_size: 4";
  ASSERT_NE(text.find(from), std::string::npos);
  text.replace(text.find(from), from.size(), to);
  const Result result = Convert(text);
  EXPECT_EQ(result.job.parallel().tensor(), 4);
  for (const std::string& line : Messages(result)) EXPECT_FALSE(absl::StartsWith(line, "error")) << line;
}

// Megatron Bridge's Llama 3 8B is the same recipe with other sizes and a context-parallel degree of 2.
TEST(PublishedRuns, ConvertsContextParallelismOfBridgeLlama3Of8B) {
  std::string text = kBridgeLlama;
  for (const auto& [from, to] : std::vector<std::pair<const char*, const char*>>{
           {"context_parallel_size: 1", "context_parallel_size: 2"},
           {"ffn_hidden_size: 8192", "ffn_hidden_size: 14336"},
           {" hidden_size: 2048", " hidden_size: 4096"},
           {"kv_channels: 64", "kv_channels: 128"},
           {"num_layers: 16", "num_layers: 32"},
           {"rope_scaling: true", "rope_scaling: false"},
           {"share_embeddings_and_output_weights: true", "share_embeddings_and_output_weights: false"},
           {"max_position_embeddings: 131072", "max_position_embeddings: 8192"}}) {
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), std::string(from).size(), to);
  }
  EXPECT_EQ(Messages(Convert(text)),
            (Lines{
                "adjust average_in_collective_off ddp.average_in_collective true -> false",
                "adjust gradient_accumulation_fusion_off model.gradient_accumulation_fusion true -> false",
                "adjust no_evaluation validation.eval_interval every 2000 steps -> never",
                "adjust per_token_loss model.calculate_per_token_loss false -> true",
                "adjust strategy_chosen dist.use_megatron_fsdp optim -> optim_grads_params",
                "warn no_data data_path",
                "warn one_step_on",
            }));
}

}  // namespace
}  // namespace fsdpd
