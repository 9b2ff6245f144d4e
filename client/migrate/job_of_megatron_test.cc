#include "client/migrate/job_of_megatron.h"

#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <set>

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
  SpecFaults faults;
};

Result Convert(const std::string& text) {
  Settings settings;
  Result result;
  EXPECT_TRUE(ReadSettings(text, "in", &settings).empty());
  result.faults = CheckMegatron(&settings);
  const SpecFaults more = JobOfMegatron(&settings, {}, "in", &result.job);
  result.faults.insert(result.faults.end(), more.begin(), more.end());
  return result;
}

bool Has(const SpecFaults& faults, const std::string& rule) {
  for (const SpecFault& fault : faults) {
    if (fault.violation.rule == rule) return true;
  }
  return false;
}

TEST(JobOfMegatron, CarriesALlamaOver) {
  const Result result = Convert(kLlama8b);
  for (const SpecFault& fault : result.faults)
    EXPECT_EQ(fault.violation.level, FaultLevel::kWarn) << Render(fault);
  v1::JobSpec want;
  const auto parsed = google::protobuf::util::JsonStringToMessage(R"({
    "name": "migrated",
    "model": {"llama": {"vocabSize": 128256, "hiddenSize": 4096, "intermediateSize": 14336, "layers": 32, "heads": 32,
                        "kvHeads": 8, "ropeTheta": 500000, "normEpsilon": 1e-5, "headSize": 128,
                        "positions": 8192}},
    "data": {"sequenceLength": 8192, "tokens": [{"path": "/data/a", "weight": 0.3, "type": "TOKEN_TYPE_MEGATRON"},
                                                {"path": "/data/b", "weight": 0.7, "type": "TOKEN_TYPE_MEGATRON"}]},
    "train": {"steps": 1000, "microBatch": 1, "globalBatch": 128, "seed": 7},
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

TEST(JobOfMegatron, CarriesAGpt2OverWithItsPaddedVocabulary) {
  const Result result = Convert(
      "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
      "--max-position-embeddings 1024 --train-iters 10 --lr 1e-4 --mock-data --optimizer sgd");
  EXPECT_EQ(result.job.model().gpt2().vocab_size(), 50304);
  EXPECT_EQ(result.job.optimizer().sgd().momentum(), 0.9);
  EXPECT_TRUE(Has(result.faults, "dropout"));
  EXPECT_FALSE(HasErrors(CheckJob(result.job)));
}

TEST(JobOfMegatron, ReadsBridgesSections) {
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

TEST(JobOfMegatron, RefusesWhatWouldTrainSomethingElse) {
  const std::string base =
      "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --train-iters 9 "
      "--lr 1e-3 --max-position-embeddings 64 ";
  EXPECT_TRUE(Has(Convert(base + "--swiglu").faults, "model_family"));
  EXPECT_TRUE(Has(Convert(base + "--lr-decay-style inverse-square-root").faults, "schedule"));
  EXPECT_TRUE(Has(Convert(base + "--exp-avg-dtype fp8").faults, "type_known"));
  EXPECT_TRUE(Has(Convert(base + "--exp-avg-dtype bf16 --exp-avg-sq-dtype fp32").faults, "moments_differ"));
  EXPECT_TRUE(Has(Convert("--hidden-size 64").faults, "required"));
  EXPECT_TRUE(
      Has(Convert(base + "--swiglu --normalization RMSNorm --position-embedding-type rope --vocab-size 64 "
                         "--rotary-percent 0.5")
              .faults,
          "rotary_percent"));
  EXPECT_TRUE(Has(Convert(base + "--swiglu --normalization RMSNorm --position-embedding-type rope").faults,
                  "linear_biases"));
}

const Violation* Find(const SpecFaults& faults, const std::string& rule) {
  for (const SpecFault& fault : faults) {
    if (fault.violation.rule == rule) return &fault.violation;
  }
  return nullptr;
}

TEST(JobOfMegatron, NamesWhatIsLeftBehindByWhetherItMatters) {
  const Result result = Convert("--log-interval 10 --tensorboard-dir /tb --num-layers 2 --new-knob 3");
  ASSERT_NE(Find(result.faults, "without_effect"), nullptr);
  EXPECT_NE(Find(result.faults, "without_effect")->reason.find("--log-interval, --tensorboard-dir"),
            std::string::npos);
  ASSERT_NE(Find(result.faults, "not_known"), nullptr);
  EXPECT_NE(Find(result.faults, "not_known")->reason.find("--new-knob"), std::string::npos);
}

// Megatron-LM's published example: Llama 3 8B on one node of H100s, as its script expands.
constexpr char kPublished[] = R"(
torchrun --nproc_per_node 8 --nnodes 1 --node_rank 0 --master_addr localhost --master_port 6000 pretrain_gpt.py \
  --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 --max-position-embeddings 8192 \
  --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0 \
  --hidden-dropout 0.0 --swiglu --init-method-std 0.0134 --attention-backend fused --apply-layernorm-1p \
  --untie-embeddings-and-output-weights --disable-bias-linear \
  --micro-batch-size 1 --global-batch-size 128 --train-samples 1953125000 --lr-decay-samples 1949218748 \
  --lr-warmup-samples 3906252 --lr 0.00015 --min-lr 0.00001 --decoupled-lr 5.0e-4 --decoupled-min-lr 4.5e-5 \
  --lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --bf16 \
  --grad-reduce-in-bf16 --cross-entropy-loss-fusion --calculate-per-token-loss --manual-gc \
  --empty-unused-memory-level 1 \
  --fp8-format hybrid --fp8-amax-history-len 1024 --fp8-amax-compute-algo max --fp8-param-gather \
  --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --no-gradient-accumulation-fusion \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ckpt-format fsdp_dtensor \
  --init-model-with-meta-device --use-nccl-ub --fsdp-double-buffer --fsdp-manual-registration \
  --tensor-model-parallel-size 1 --context-parallel-size 1 --sequence-parallel \
  --mock-data --tokenizer-type NullTokenizer --vocab-size 128256 --data-cache-path /cache --tiktoken-pattern v2 \
  --split 99,1,0 --no-create-attention-mask-in-dataloader --no-mmap-bin-files --num-workers 1 \
  --log-interval 1 --eval-iters 32 --eval-interval 100 --save-interval 1000 --log-throughput \
  --profile --profile-step-start 4 --profile-step-end 6 --distributed-timeout-minutes 60 --tensorboard-dir /tb
)";

TEST(JobOfMegatron, RefusesInThePublishedExampleWhatIsAnotherModelAndNothingElse) {
  std::set<std::string> refused;
  for (const SpecFault& fault : Convert(kPublished).faults) {
    if (fault.violation.level == FaultLevel::kError)
      refused.insert(fault.violation.rule + " " + fault.violation.field);
    EXPECT_NE(fault.violation.rule, "not_known") << Render(fault);
  }
  EXPECT_EQ(refused,
            (std::set<std::string>{"fp8_unsupported --fp8-format", "fp8_unsupported --fp8-param-gather",
                                   "initial_values --init-method-std", "model_family --swiglu",
                                   "not_supported --apply-layernorm-1p"}));
}

TEST(JobOfMegatron, CarriesThePublishedExampleOverWithoutWhatIsAnotherModel) {
  std::string text = kPublished;
  for (const char* gone :
       {"--init-method-std 0.0134", "--apply-layernorm-1p", "--fp8-format hybrid", "--fp8-param-gather"}) {
    text.erase(text.find(gone), std::string(gone).size());
  }
  const Result result = Convert("torchrun --nproc_per_node 4 --nnodes 2 x.py --normalization RMSNorm " +
                                text.substr(text.find("--node_rank")));
  for (const SpecFault& fault : result.faults)
    EXPECT_NE(fault.violation.level, FaultLevel::kError) << Render(fault);
  const v1::JobSpec& job = result.job;
  EXPECT_FALSE(HasErrors(CheckJob(job)));
  EXPECT_EQ(job.resources().nodes(), 2);
  EXPECT_EQ(job.resources().ranks_per_node(), 4);
  // Samples are steps of 128.
  EXPECT_EQ(job.train().steps(), 15258789);
  EXPECT_EQ(job.schedule().cosine().warmup_steps(), 30517);
  EXPECT_EQ(Find(result.faults, "samples_are_steps")->before, "1953125000 samples");
  EXPECT_TRUE(Has(result.faults, "decay_length"));
  // The ends of the model have a rate of their own, which falls to another part of its peak.
  ASSERT_EQ(job.optimizer().groups_size(), 1);
  const v1::ParamGroup& group = job.optimizer().groups(0);
  EXPECT_EQ(std::vector<std::string>(group.params().begin(), group.params().end()),
            (std::vector<std::string>{"embedding.weight", "head.output"}));
  EXPECT_NEAR(group.lr_scale(), 5e-4 / 1.5e-4, 1e-12);
  EXPECT_EQ(Find(result.faults, "own_least_rate")->before, "4.5e-05");
  EXPECT_EQ(Find(result.faults, "own_least_rate")->after, "3.33333e-05");
  EXPECT_TRUE(Has(result.faults, "one_step_on"));
  EXPECT_TRUE(Has(result.faults, "no_evaluation"));
}

TEST(JobOfMegatron, SaysWhatWouldTrainOtherwise) {
  const std::string base =
      "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --train-iters 90 "
      "--lr 1e-3 --max-position-embeddings 64 --data-path /d ";
  const auto adjusted = [&](const std::string& more, const std::string& rule) {
    const Result result = Convert(base + more);
    const Violation* fault = Find(result.faults, rule);
    return fault == nullptr ? "(not told)" : fault->before + " -> " + fault->after;
  };
  // Exponential is Megatron's own; it became a straight line without a word.
  EXPECT_EQ(adjusted("--lr-decay-style WSD --lr-wsd-decay-iters 9", "wsd_decay_style"),
            "exponential -> linear");
  EXPECT_EQ(
      adjusted("--lr-decay-style WSD --lr-wsd-decay-iters 9 --lr-wsd-decay-style linear", "wsd_decay_style"),
      "(not told)");
  EXPECT_EQ(adjusted("--lr-warmup-iters 9 --lr-warmup-init 1e-6", "warmup_from"), "1e-06 -> 0");
  EXPECT_EQ(adjusted("--split 949,50,1", "split"), "949,50,1 -> all");
  EXPECT_EQ(adjusted("--fp16", "loss_scale_hysteresis"), "2 -> 1");
  EXPECT_EQ(Convert(base + "--start-weight-decay 0.3 --end-weight-decay 0.3")
                .job.optimizer()
                .adamw()
                .weight_decay(),
            0.3);
  EXPECT_TRUE(Has(Convert(base + "--weight-decay-incr-style linear --start-weight-decay 0").faults,
                  "weight_decay_grows"));
  EXPECT_TRUE(Has(Convert(base + "--dataloader-type cyclic").faults, "data_order"));
  EXPECT_TRUE(Has(Convert("torchrun --nnodes 2:4 x.py " + base).faults, "torchrun_count"));
}

}  // namespace
}  // namespace fsdpd
