#include "client/migrate/job_of_megatron.h"

#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "client/migrate/megatron_rules.h"
#include "fsdp/plan/rules.h"

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
  const SpecFaults more = JobOfMegatron(&settings, {1, 8}, "in", &result.job);
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
                        "kvHeads": 8, "ropeTheta": 500000, "normEpsilon": 1e-5, "headSize": 128}},
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

TEST(JobOfMegatron, NamesEverySettingThatIsNotCarriedOver) {
  const Result result = Convert("--log-interval 10 --tensorboard-dir /tb --num-layers 2");
  for (const SpecFault& fault : result.faults) {
    if (fault.violation.rule != "not_carried_over") continue;
    EXPECT_NE(fault.violation.reason.find("--log-interval, --tensorboard-dir"), std::string::npos);
    return;
  }
  FAIL() << "nothing was told";
}

}  // namespace
}  // namespace fsdpd
