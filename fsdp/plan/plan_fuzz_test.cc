// Fuzz test of MakePlan(): random job specs, valid or not, are planned or rejected by rules. A violation
// `compiler_bug` is a bug in fsdpd; the printed seed reproduces it.
#include <gtest/gtest.h>

#include <initializer_list>
#include <random>

#include "base/seeds.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {
namespace {

const int kSeeds = Seeds(1500);

class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}

  int64_t Pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool OneIn(int64_t times) { return Pick(1, times) == 1; }
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return *(values.begin() + Pick(0, static_cast<int64_t>(values.size()) - 1));
  }
  // A size that is usually valid, sometimes extreme.
  int64_t Size(std::initializer_list<int64_t> values) {
    return OneIn(40) ? Of<int64_t>({-1, 0, 3, 1'000'003, int64_t{1} << 40}) : Of(values);
  }

 private:
  std::mt19937 random_;
};

void RandomLatents(Dice* dice, v1::Llama* llama) {
  if (!dice->OneIn(8)) llama->clear_kv_heads();
  v1::Llama::LatentAttention* latent = llama->mutable_latent_attention();
  latent->set_rank(dice->Size({4, 12}));
  if (dice->OneIn(2)) latent->set_query_rank(dice->Size({6, 24}));
  latent->set_plain_head_size(dice->Size({2, 8}));
  latent->set_rotary_head_size(dice->Size({2, 4}));
  latent->set_value_head_size(dice->Size({5, 8, 16}));
}

void RandomModel(Dice* dice, v1::Model* model) {
  if (dice->OneIn(4)) {
    v1::Gpt2* gpt2 = model->mutable_gpt2();
    gpt2->set_vocab_size(dice->Size({64, 256, 1009}));
    gpt2->set_hidden_size(dice->Size({16, 32, 48}));
    gpt2->set_layers(dice->Size({1, 2, 5}));
    gpt2->set_heads(dice->Size({1, 2, 4}));
    gpt2->set_positions(dice->Size({16, 64, 1024}));
    return;
  }
  v1::Llama* llama = model->mutable_llama();
  llama->set_vocab_size(dice->Size({64, 256, 1009}));
  llama->set_hidden_size(dice->Size({16, 32, 64}));
  llama->set_intermediate_size(dice->Size({16, 40, 128}));
  llama->set_layers(dice->Size({1, 2, 3, 9}));
  llama->set_heads(dice->Size({2, 4}));
  llama->set_kv_heads(dice->Size({1, 2}));
  llama->set_tied_embeddings(dice->OneIn(4));
  if (dice->OneIn(4)) RandomLatents(dice, llama);
  if (!dice->OneIn(3)) return;
  v1::Llama::Experts* experts = llama->mutable_experts();
  experts->set_count(dice->Size({1, 4, 6}));
  experts->set_per_token(dice->Size({1, 2}));
  if (dice->OneIn(2)) experts->set_intermediate_size(dice->Size({16, 24}));
  if (dice->OneIn(3)) experts->set_dense_layers(dice->Size({0, 1}));
  if (dice->OneIn(3)) experts->set_balance_loss(0.01);
  if (!dice->OneIn(3)) return;
  experts->set_scores(v1::Llama::Experts::SCORES_SIGMOID);
  experts->set_selection_bias(!dice->OneIn(8));
  experts->set_bias_update_rate(dice->OneIn(8) ? -1 : 0.001);
}

void RandomPrecision(Dice* dice, v1::Precision* precision) {
  const auto type = [dice] {
    return dice->Of({v1::DTYPE_UNSPECIFIED, v1::DTYPE_FP32, v1::DTYPE_BF16, v1::DTYPE_FP16});
  };
  precision->set_compute(type());
  if (dice->OneIn(3)) precision->set_main_grads(type());
  if (dice->OneIn(3)) precision->set_grad_comm(type());
  if (dice->OneIn(3)) precision->set_moments(type());
}

void RandomSharding(Dice* dice, v1::Fsdp* fsdp) {
  fsdp->set_strategy(dice->Of({v1::STRATEGY_UNSPECIFIED, v1::STRATEGY_NO_SHARD, v1::STRATEGY_OPTIM,
                               v1::STRATEGY_OPTIM_GRADS, v1::STRATEGY_OPTIM_GRADS_PARAMS}));
  if (dice->OneIn(3)) {
    fsdp->mutable_outer()->set_size(dice->Size({1, 2, 4}));
    fsdp->mutable_outer()->set_strategy(
        dice->Of({v1::STRATEGY_UNSPECIFIED, v1::STRATEGY_NO_SHARD, v1::STRATEGY_OPTIM}));
  }
  fsdp->set_recompute(
      dice->Of({v1::RECOMPUTE_UNSPECIFIED, v1::RECOMPUTE_NONE, v1::RECOMPUTE_FULL, v1::RECOMPUTE_SELECTIVE}));
  if (dice->OneIn(3)) fsdp->set_recompute_layers(dice->Size({0, 1, 2, 9}));
  if (dice->OneIn(3)) fsdp->set_prefetch_bytes(dice->Size({0, 1, 4096, 1 << 20}));
  fsdp->set_keep_gathered(dice->OneIn(4));
  if (dice->OneIn(4)) fsdp->mutable_offload()->set_optimizer(dice->OneIn(2));
  if (dice->OneIn(6)) fsdp->mutable_offload()->set_activation_layers(dice->Pick(-1, 5));
  if (dice->OneIn(6))
    fsdp->set_memory(dice->OneIn(2) ? v1::MEMORY_RECOMPUTE : v1::MEMORY_RECOMPUTE_OR_OFFLOAD);
}

void RandomCheckpoint(Dice* dice, v1::Checkpoint* checkpoint) {
  if (!dice->OneIn(6)) checkpoint->set_dir(dice->OneIn(20) ? "runs/../1" : "/runs/1");
  if (dice->OneIn(2)) checkpoint->set_every_steps(dice->Size({0, 1, 5, 20}));
  if (dice->OneIn(3)) checkpoint->set_on_end(dice->OneIn(2));
  if (dice->OneIn(4)) checkpoint->set_keep_last(dice->Size({1, 3}));
  if (dice->OneIn(4)) checkpoint->set_keep_every(dice->Size({0, 5, 7}));
  if (dice->OneIn(4)) checkpoint->set_load("/runs/0");
  if (dice->OneIn(4)) checkpoint->set_load_optimizer(dice->OneIn(2));
}

void RandomStages(Dice* dice, v1::JobSpec* job) {
  v1::Parallel* parallel = job->mutable_parallel();
  parallel->set_pipeline(dice->Size({1, 2, 4}));
  if (dice->OneIn(3)) parallel->set_pipeline_chunks(dice->Size({1, 2, 3}));
  if (dice->OneIn(3)) {
    parallel->set_pipeline_schedule(
        dice->Of({v1::PIPELINE_SCHEDULE_1F1B, v1::PIPELINE_SCHEDULE_ZERO_BUBBLE}));
    if (dice->OneIn(2)) job->mutable_fsdp()->set_strategy(v1::STRATEGY_OPTIM);
  }
  if (!dice->OneIn(4)) job->mutable_resources()->set_device(v1::DEVICE_CPU);
  for (int stage = 0; dice->OneIn(2) && stage < 4; ++stage)
    parallel->add_stage_units(dice->Size({0, 1, 2, 3}));
}

v1::JobSpec RandomJob(Dice* dice) {
  v1::JobSpec job;
  job.set_name("fuzz");
  RandomModel(dice, job.mutable_model());
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(dice->Size({8, 16}));
  v1::Train* train = job.mutable_train();
  train->set_steps(dice->Size({1, 10}));
  train->set_micro_batch(dice->Size({1, 2}));
  const int64_t nodes = dice->Size({1, 2}), ranks = dice->Size({1, 2, 4});
  if (dice->OneIn(2)) train->set_global_batch(2 * nodes * ranks * dice->Of<int64_t>({1, 2, 3}));
  if (dice->OneIn(4)) train->add_frozen(dice->Of<const char*>({"embedding.*", "layer.0.*", "*norm*", "*"}));
  if (dice->OneIn(4)) train->mutable_evaluation()->set_every_steps(dice->Size({1, 5}));
  if (dice->OneIn(4)) job.mutable_optimizer()->mutable_sgd()->set_lr(0.1);
  if (dice->OneIn(2)) job.mutable_optimizer()->set_clip_norm(1.0);
  RandomPrecision(dice, job.mutable_precision());
  RandomSharding(dice, job.mutable_fsdp());
  if (dice->OneIn(3)) job.mutable_parallel()->set_context(dice->Size({1, 2, 4}));
  if (dice->OneIn(3)) job.mutable_parallel()->set_tensor(dice->Size({1, 2, 4}));
  if (dice->OneIn(3)) job.mutable_parallel()->set_expert(dice->Size({1, 2, 4}));
  job.mutable_resources()->set_nodes(nodes);
  job.mutable_resources()->set_ranks_per_node(ranks);
  job.mutable_resources()->set_device(dice->Of({v1::DEVICE_UNSPECIFIED, v1::DEVICE_CPU, v1::DEVICE_CUDA}));
  if (dice->OneIn(3)) RandomCheckpoint(dice, job.mutable_checkpoint());
  if (dice->OneIn(4)) RandomStages(dice, &job);
  return job;
}

TEST(PlanFuzz, EverySpecIsPlannedOrRejected) {
  int accepted = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    Dice dice(seed);
    const v1::JobSpec job = RandomJob(&dice);
    const Plan plan = MakePlan(job, dice.OneIn(2) ? 0 : dice.Of<int64_t>({1 << 10, 1 << 20, 1 << 28}));
    accepted += plan.accepted() ? 1 : 0;
    for (const Violation& violation : plan.violations) {
      EXPECT_NE(violation.rule, "compiler_bug") << "seed " << seed << ": " << violation.reason << "\n"
                                                << job.DebugString();
    }
  }
  EXPECT_GT(accepted, kSeeds / 20);  // Otherwise the generator produces only invalid specs.
}

}  // namespace
}  // namespace fsdpd
