#include "fsdp/plan/spec/defaults.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace fsdpd {
namespace {

TEST(Defaults, KeepsExplicitZeros) {
  v1::JobSpec job;
  job.mutable_model()->mutable_llama()->set_rope_theta(0);
  job.mutable_model()->mutable_llama()->set_norm_epsilon(0);
  job.mutable_data()->add_tokens()->set_weight(0);
  job.mutable_train()->set_micro_batch(0);
  job.mutable_train()->set_global_batch(0);
  job.mutable_train()->set_seed(0);
  job.mutable_optimizer()->mutable_adamw()->set_lr(0);
  job.mutable_optimizer()->mutable_adamw()->set_eps(0);
  job.mutable_fsdp()->mutable_outer()->set_size(0);
  job.mutable_resources()->set_nodes(0);
  job.mutable_resources()->set_ranks_per_node(0);
  job.mutable_resources()->set_memory_budget_bytes(0);
  job.mutable_restart()->set_max_attempts(0);
  job.mutable_restart()->set_hang_seconds(0);
  job.mutable_checkpoint()->set_dir("/runs/1");
  job.mutable_checkpoint()->set_load("/runs/0");
  job.mutable_checkpoint()->set_on_end(false);
  job.mutable_checkpoint()->set_keep_last(0);
  job.mutable_checkpoint()->set_load_optimizer(false);
  const v1::JobSpec filled = WithDefaults(job, nullptr);
  EXPECT_EQ(filled.model().llama().DebugString(), job.model().llama().DebugString());
  EXPECT_EQ(filled.data().tokens(0).weight(), 0);
  EXPECT_EQ(filled.train().DebugString(), job.train().DebugString());
  EXPECT_EQ(filled.optimizer().adamw().lr(), 0);
  EXPECT_EQ(filled.optimizer().adamw().eps(), 0);
  EXPECT_EQ(filled.fsdp().outer().size(), 0);
  EXPECT_EQ(filled.resources().nodes(), 0);
  EXPECT_EQ(filled.resources().ranks_per_node(), 0);
  EXPECT_EQ(filled.resources().memory_budget_bytes(), 0);
  EXPECT_EQ(filled.restart().max_attempts(), 0);
  EXPECT_EQ(filled.restart().hang_seconds(), 0);
  EXPECT_FALSE(filled.checkpoint().on_end());
  EXPECT_EQ(filled.checkpoint().keep_last(), 0);
  EXPECT_FALSE(filled.checkpoint().load_optimizer());
}

TEST(Defaults, UsesComputeTypeForShardedGradComm) {
  for (const v1::DType compute : {v1::DTYPE_FP32, v1::DTYPE_BF16, v1::DTYPE_FP16}) {
    for (const v1::Strategy strategy : {v1::STRATEGY_UNSPECIFIED, v1::STRATEGY_NO_SHARD, v1::STRATEGY_OPTIM,
                                        v1::STRATEGY_OPTIM_GRADS, v1::STRATEGY_OPTIM_GRADS_PARAMS}) {
      v1::JobSpec job;
      job.mutable_precision()->set_compute(compute);
      job.mutable_fsdp()->set_strategy(strategy);
      const bool sharded = strategy != v1::STRATEGY_NO_SHARD && strategy != v1::STRATEGY_OPTIM;
      EXPECT_EQ(WithDefaults(job, nullptr).precision().grad_comm(),
                compute == v1::DTYPE_BF16 && sharded ? v1::DTYPE_BF16 : v1::DTYPE_FP32)
          << compute << " " << strategy;
      job.mutable_precision()->set_grad_comm(v1::DTYPE_FP32);
      EXPECT_EQ(WithDefaults(job, nullptr).precision().grad_comm(), v1::DTYPE_FP32);
    }
  }
}

TEST(Defaults, KeepsGradCommInAnotherStrategy) {
  v1::JobSpec job;
  job.mutable_precision()->set_compute(v1::DTYPE_BF16);
  job.mutable_fsdp()->set_strategy(v1::STRATEGY_OPTIM);
  const v1::JobSpec sharded = InStrategy(job, v1::STRATEGY_OPTIM_GRADS);
  EXPECT_EQ(WithDefaults(sharded, nullptr).precision().grad_comm(), v1::DTYPE_FP32);
  const v1::JobSpec more = InStrategy(sharded, v1::STRATEGY_OPTIM_GRADS_PARAMS);
  EXPECT_EQ(WithDefaults(more, nullptr).precision().grad_comm(), v1::DTYPE_FP32);
  job.clear_fsdp();
  EXPECT_EQ(WithDefaults(InStrategy(job, v1::STRATEGY_OPTIM_GRADS), nullptr).precision().grad_comm(),
            v1::DTYPE_BF16);
  EXPECT_EQ(WithDefaults(InStrategy(job, v1::STRATEGY_NO_SHARD), nullptr).precision().grad_comm(),
            v1::DTYPE_FP32);
}

TEST(Defaults, ReportsZeroFinalLearningRate) {
  for (const char* shape : {"cosine", "linear", "wsd"}) {
    v1::JobSpec job;
    job.mutable_train()->set_steps(40);
    if (shape == std::string("cosine")) job.mutable_schedule()->mutable_cosine();
    if (shape == std::string("linear")) job.mutable_schedule()->mutable_linear();
    if (shape == std::string("wsd")) job.mutable_schedule()->mutable_wsd();
    std::vector<Choice> choices;
    const v1::JobSpec filled = WithDefaults(job, &choices);
    const auto told = std::find_if(choices.begin(), choices.end(), [&](const Choice& choice) {
      return choice.field == std::string("schedule.") + shape + ".min_lr_ratio";
    });
    ASSERT_NE(told, choices.end()) << shape;
    EXPECT_EQ(told->value, "0");
    EXPECT_NE(told->reason.find("the last step, 40, has learning rate 0"), std::string::npos) << told->reason;
    choices.clear();
    EXPECT_EQ(WithDefaults(filled, &choices).SerializeAsString(), filled.SerializeAsString());
    EXPECT_TRUE(choices.empty()) << "a ratio that is written, 0 too, is no default";
  }
}

TEST(Defaults, IsIdempotent) {
  v1::JobSpec job;
  job.mutable_model()->mutable_gpt2();
  job.mutable_precision()->set_compute(v1::DTYPE_FP16);
  const v1::JobSpec once = WithDefaults(job, nullptr);
  std::vector<Choice> choices;
  EXPECT_EQ(WithDefaults(once, &choices).SerializeAsString(), once.SerializeAsString());
  EXPECT_TRUE(choices.empty());
  EXPECT_EQ(once.train().seed(), 1);
  EXPECT_EQ(once.precision().loss_scale().initial(), 65536);
}

std::string ReasonOf(const std::vector<Choice>& choices, const std::string& field) {
  for (const Choice& choice : choices) {
    if (choice.field == field) return choice.value + ": " + choice.reason;
  }
  return "";
}

TEST(Defaults, SetsExpertDefaultsOnlyWithExperts) {
  v1::JobSpec job;
  v1::Llama::Experts* experts = job.mutable_model()->mutable_llama()->mutable_experts();
  experts->set_groups(4);
  std::vector<Choice> choices;
  const v1::Llama::Experts filled = WithDefaults(job, &choices).model().llama().experts();
  EXPECT_TRUE(filled.normalized());
  EXPECT_EQ(filled.scores(), v1::Llama::Experts::SCORES_SOFTMAX);
  EXPECT_EQ(filled.groups(), 4);
  EXPECT_EQ(filled.groups_per_token(), 4);
  EXPECT_EQ(filled.group_scores(), v1::Llama::Experts::GROUP_SCORES_TWO_BEST);
  EXPECT_EQ(filled.weight_scale(), 1);
  const auto of_scores = [](const Choice& choice) {
    return choice.field == "model.llama.experts.scores" && choice.value == "softmax";
  };
  EXPECT_EQ(std::count_if(choices.begin(), choices.end(), of_scores), 1);
  experts->set_scores(v1::Llama::Experts::SCORES_SIGMOID);
  EXPECT_EQ(WithDefaults(job, nullptr).model().llama().experts().scores(),
            v1::Llama::Experts::SCORES_SIGMOID);
  job.mutable_model()->mutable_llama()->clear_experts();
  EXPECT_FALSE(WithDefaults(job, nullptr).model().llama().has_experts());
}

TEST(Defaults, SetsCheckpointDefaultsOnlyWithCheckpoints) {
  v1::JobSpec job;
  job.mutable_checkpoint()->set_dir("/runs/1");
  job.mutable_checkpoint()->set_every_steps(10);
  job.mutable_checkpoint()->set_load("/runs/0");
  std::vector<Choice> choices;
  const v1::JobSpec filled = WithDefaults(job, &choices);
  EXPECT_TRUE(filled.checkpoint().on_end());
  EXPECT_EQ(filled.checkpoint().keep_last(), 3);
  EXPECT_FALSE(filled.checkpoint().has_load_optimizer()) << "ranks look at what there is";
  EXPECT_EQ(filled.restart().max_attempts(), 3);
  EXPECT_EQ(ReasonOf(choices, "checkpoint.on_end"), "true: default: the final model is saved");
  EXPECT_EQ(ReasonOf(choices, "checkpoint.keep_last"), "3: default: older ones are removed");
  EXPECT_EQ(ReasonOf(choices, "restart.max_attempts"),
            "3: default: a failed job resumes from its newest checkpoint");
  job.mutable_checkpoint()->clear_every_steps();
  EXPECT_EQ(WithDefaults(job, nullptr).restart().max_attempts(), 1);
  job.mutable_checkpoint()->set_every_minutes(30);
  EXPECT_EQ(WithDefaults(job, nullptr).restart().max_attempts(), 3);
  choices.clear();
  EXPECT_EQ(WithDefaults(filled, &choices).SerializeAsString(), filled.SerializeAsString());
  EXPECT_TRUE(choices.empty());
}

TEST(Defaults, SetsBadStepDefaultsOnlyIfEnabled) {
  v1::JobSpec job;
  EXPECT_FALSE(WithDefaults(job, nullptr).train().has_on_nonfinite());
  EXPECT_FALSE(WithDefaults(job, nullptr).train().has_on_spike());
  job.mutable_train()->mutable_on_nonfinite();
  job.mutable_train()->mutable_on_spike()->set_action(v1::STEP_ACTION_SKIP);
  std::vector<Choice> choices;
  const v1::Train filled = WithDefaults(job, &choices).train();
  EXPECT_EQ(filled.on_nonfinite().action(), v1::STEP_ACTION_STOP);
  EXPECT_FALSE(filled.on_nonfinite().has_max());
  EXPECT_EQ(filled.on_spike().max(), 10);
  EXPECT_EQ(filled.on_spike().grad_norm_factor(), 10);
  EXPECT_EQ(filled.on_spike().window(), 128);
  EXPECT_EQ(ReasonOf(choices, "train.on_nonfinite.action"), "stop: default: the attempt fails");
  EXPECT_EQ(ReasonOf(choices, "train.on_spike.window"), "128: default");
  job.mutable_train()->mutable_on_spike()->set_grad_norm_factor(0);  // An explicit value stays.
  EXPECT_EQ(WithDefaults(job, nullptr).train().on_spike().grad_norm_factor(), 0);
}

TEST(Defaults, OmitsCheckpointDefaultsWithoutCheckpoints) {
  const v1::JobSpec filled = WithDefaults(v1::JobSpec(), nullptr);
  EXPECT_FALSE(filled.checkpoint().has_on_end());
  EXPECT_FALSE(filled.checkpoint().has_keep_last());
  EXPECT_FALSE(filled.checkpoint().has_load_optimizer());
  EXPECT_EQ(filled.restart().max_attempts(), 1);
}

// A later attempt would have no checkpoint to resume from.
TEST(Defaults, FinalCheckpointOnlyKeepsOneAttempt) {
  v1::JobSpec job;
  job.mutable_checkpoint()->set_dir("/runs/1");
  EXPECT_EQ(WithDefaults(job, nullptr).restart().max_attempts(), 1);
}

// Proto3 fields without presence do not serialize zeros: such old bytes must still mean "not set".
TEST(Defaults, AppliesToSpecsStoredWithoutPresence) {
  v1::JobSpec stored;
  ASSERT_TRUE(
      stored.ParseFromString(std::string("\x0a\x01x\x22\x02\x08\x05", 7)));  // name: x, train: {steps: 5}
  const v1::JobSpec filled = WithDefaults(stored, nullptr);
  EXPECT_EQ(filled.name(), "x");
  EXPECT_EQ(filled.train().steps(), 5);
  EXPECT_EQ(filled.train().micro_batch(), 1);
}

TEST(GlobalBatch, IsAMicroBatchOfEachRankThatSharesNoSample) {
  v1::JobSpec job;
  EXPECT_EQ(GlobalBatchOf(job), 1);
  job.mutable_resources()->set_nodes(2);
  job.mutable_resources()->set_ranks_per_node(8);
  job.mutable_train()->set_micro_batch(3);
  EXPECT_EQ(GlobalBatchOf(job), 48);
  job.mutable_parallel()->set_tensor(2);
  job.mutable_parallel()->set_context(2);
  job.mutable_parallel()->set_pipeline(2);
  EXPECT_EQ(GlobalBatchOf(job), 6);
  job.mutable_train()->set_global_batch(24);
  EXPECT_EQ(GlobalBatchOf(job), 24);
}

TEST(GlobalBatch, ASpecThatRulesRefuseDividesByNoZero) {
  v1::JobSpec job;
  job.mutable_parallel()->set_tensor(0);
  EXPECT_EQ(GlobalBatchOf(job), 1);
}

// Four nodes of 2^62 ranks were no rank at all.
TEST(GlobalBatch, ASpecThatRulesRefuseIsSaturatedAndDoesNotOverflow) {
  v1::JobSpec job;
  job.mutable_resources()->set_nodes(4);
  job.mutable_resources()->set_ranks_per_node(int64_t{1} << 62);
  EXPECT_EQ(GlobalBatchOf(job), std::numeric_limits<int64_t>::max());
  job.mutable_train()->set_micro_batch(-2);
  EXPECT_EQ(GlobalBatchOf(job), std::numeric_limits<int64_t>::min());
}

}  // namespace
}  // namespace fsdpd
