// Mixture of experts: a job in every strategy and mesh matches the job on one rank up to rounding, including
// router losses, and resumes from a checkpoint of any other mesh.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/temp_dir.h"
#include "fsdp/engine/testing/test_job.h"
#include "fsdp/plan/verify/verify.h"

namespace fsdpd {
namespace {

constexpr double kRoundOff = 1e-5;

struct Case {
  TestMesh mesh;
  int world = 2;
  int micro_batches = 1;
  int tensor = 1;
  int context = 1;
  int expert = 1;
};

// The first layer is dense.
v1::JobSpec ExpertsJob() {
  v1::JobSpec job = TestJob();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(44);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  llama->set_head_size(6);
  llama->set_layers(3);
  v1::Llama::Experts* experts = llama->mutable_experts();
  experts->set_count(4);
  experts->set_per_token(2);
  experts->set_intermediate_size(12);
  experts->set_dense_layers(1);
  experts->set_balance_loss(0.1);
  experts->set_z_loss(0.01);
  job.mutable_data()->mutable_synthetic()->set_vocab(12);  // Few words: easy to fit.
  job.mutable_data()->set_sequence_length(24);
  job.mutable_optimizer()->set_clip_norm(0.5);
  job.mutable_train()->set_steps(10);
  return job;
}

v1::Llama::Experts* ExpertsOf(v1::JobSpec* job) {
  return job->mutable_model()->mutable_llama()->mutable_experts();
}

v1::JobSpec Spread(const v1::JobSpec& job, const Case& c) {
  v1::JobSpec spread = Over(job, c.mesh, c.world, c.micro_batches);
  spread.mutable_parallel()->set_tensor(c.tensor);
  spread.mutable_parallel()->set_context(c.context);
  spread.mutable_parallel()->set_expert(c.expert);
  spread.mutable_train()->set_micro_batch(job.train().global_batch() * c.tensor * c.context / c.world /
                                          c.micro_batches);
  return spread;
}

const TestMesh kNoShard{"no_shard", v1::STRATEGY_NO_SHARD};
const TestMesh kParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};

std::vector<Case> Cases() {
  const TestMesh optim{"optim", v1::STRATEGY_OPTIM};
  const TestMesh grads{"optim_grads", v1::STRATEGY_OPTIM_GRADS};
  const TestMesh hsdp{"hsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_NO_SHARD};
  const TestMesh hfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};
  std::vector<Case> cases;
  for (const TestMesh& mesh : {kNoShard, optim, grads, kParams, hsdp, hfsdp}) {
    cases.push_back({mesh, 2, 1});
    cases.push_back({mesh, 4, 3});
    cases.push_back({mesh, 4, 3, 1, 1, 2});
  }
  for (const TestMesh& mesh : {kNoShard, kParams}) {
    cases.push_back({mesh, 2, 1, 2, 1});
    cases.push_back({mesh, 4, 3, 1, 2});
    cases.push_back({mesh, 4, 1, 2, 2});
    cases.push_back({mesh, 4, 1, 1, 1, 4});
    cases.push_back({mesh, 4, 3, 1, 2, 2});
    cases.push_back({mesh, 8, 1, 1, 2, 2});
  }
  return cases;
}

// Routing statistics: means over all tokens, wherever they were routed.
void ExpectSameRouting(const LocalJobResult& one, const LocalJobResult& other) {
  for (size_t s = 0; s < one.reports[0].size(); ++s) {
    const v1::StepReport::Routing &a = one.reports[0][s].routing(), &b = other.reports[0][s].routing();
    EXPECT_NEAR(a.entropy(), b.entropy(), 1e-4);
    EXPECT_NEAR(a.balance_loss(), b.balance_loss(), 1e-4);
    EXPECT_NEAR(a.z_loss(), b.z_loss(), 1e-4);
    EXPECT_GE(b.imbalance(), 1);
    EXPECT_LE(b.imbalance(), 4.0 / 2);  // A token goes to an expert at most once.
    EXPECT_GT(b.entropy(), 0);
    EXPECT_LE(b.entropy(), std::log(4.0) + 1e-6);
    EXPECT_GT(b.balance_loss(), 0.9);
  }
}

class ExpertsMesh : public ::testing::TestWithParam<Case> {};

TEST_P(ExpertsMesh, MatchesOneRank) {
  static const LocalJobResult* const one_rank = new LocalJobResult(Train(ExpertsJob()));
  const LocalJobResult spread = Train(Spread(ExpertsJob(), GetParam()));
  ExpectSame(*one_rank, spread, kRoundOff);
  ExpectSameRouting(*one_rank, spread);
  EXPECT_LT(spread.reports[0].back().loss(), spread.reports[0].front().loss());
}

INSTANTIATE_TEST_SUITE_P(Meshes, ExpertsMesh, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           const Case& c = info.param;
                           return c.mesh.name + "_world" + std::to_string(c.world) + "_mb" +
                                  std::to_string(c.micro_batches) + "_tensor" + std::to_string(c.tensor) +
                                  "_context" + std::to_string(c.context) + "_expert" +
                                  std::to_string(c.expert);
                         });

// Samples in which none to all of the targets count: every mesh weights router losses alike.
TEST(Experts, RouterLossesWithMaskMatchOneRank) {
  TempDir dir;
  std::ofstream text(dir.File("text"), std::ios::binary), mask(dir.File("mask"), std::ios::binary);
  for (int i = 0; i < 24 * 40; ++i) {
    text.put(static_cast<char>(i * i % 31 % 12));
    mask.put(static_cast<char>(i % 24 >= i / 24 % 25));
  }
  text.close();
  mask.close();
  v1::JobSpec job = ExpertsJob();
  job.mutable_model()->mutable_llama()->set_vocab_size(256);
  job.mutable_data()->clear_synthetic();
  v1::TokenFile* file = job.mutable_data()->add_tokens();
  file->set_path(dir.File("text"));
  file->set_mask(dir.File("mask"));
  file->set_type(v1::TOKEN_TYPE_U8);
  const LocalJobResult one_rank = Train(job);
  for (const Case& c : {Case{kParams, 4, 3}, Case{kParams, 2, 1, 2}, Case{kParams, 4, 3, 1, 2},
                        Case{kNoShard, 4, 1, 1, 2}, Case{kParams, 4, 3, 1, 1, 2}}) {
    const LocalJobResult spread = Train(Spread(job, c));
    ExpectSame(one_rank, spread, kRoundOff);
    ExpectSameRouting(one_rank, spread);
  }
}

const Case kShared{kParams, 4, 3}, kAmong{kParams, 4, 3, 1, 1, 2}, kFour{kParams, 4, 1, 1, 1, 4};

TEST(Experts, SupportsTopOneAndTopAll) {
  for (const auto& [count, per_token] : {std::pair(1, 1), std::pair(3, 3), std::pair(8, 1)}) {
    v1::JobSpec job = ExpertsJob();
    ExpertsOf(&job)->set_count(count);
    ExpertsOf(&job)->set_per_token(per_token);
    ExpertsOf(&job)->set_normalized(false);
    const LocalJobResult one_rank = Train(job);
    ExpectSame(one_rank, Train(Spread(job, kShared)), kRoundOff);
    if (count % kAmong.expert == 0) ExpectSame(one_rank, Train(Spread(job, kAmong)), kRoundOff);
    if (count % kFour.expert == 0) ExpectSame(one_rank, Train(Spread(job, kFour)), kRoundOff);
    if (count == per_token) EXPECT_EQ(one_rank.reports[0][0].routing().imbalance(), 1);
  }
}

// With top-1 routing over four ranks.
TEST(Experts, RowDispatchMatchesOneRank) {
  v1::JobSpec job = ExpertsJob();
  ExpertsOf(&job)->set_per_token(1);
  const LocalJobResult one_rank = Train(job);
  for (const Case& c : {Case{kNoShard, 4, 3, 1, 1, 4}, Case{kParams, 8, 1, 1, 2, 4}})
    ExpectSame(one_rank, Train(Spread(job, c)), kRoundOff);
}

TEST(Experts, MoreExpertsThanTokens) {
  v1::JobSpec job = ExpertsJob();
  ExpertsOf(&job)->set_count(128);
  ExpertsOf(&job)->set_per_token(1);
  job.mutable_data()->set_sequence_length(4);
  const LocalJobResult one_rank = Train(job);
  for (const Case& c : {kShared, kAmong, Case{kNoShard, 4, 3, 1, 1, 4}})
    ExpectSame(one_rank, Train(Spread(job, c)), kRoundOff);
  EXPECT_GT(one_rank.reports[0][0].routing().imbalance(), 2);
}

TEST(Experts, RecomputeIsBitIdentical) {
  for (const Case& c : {kShared, kAmong, kFour}) {
    v1::JobSpec among = Spread(ExpertsJob(), c);
    if (c.expert == 4) ExpertsOf(&among)->set_per_token(1);  // Dispatches rows.
    const LocalJobResult baseline = Train(among);
    for (const v1::Recompute recompute : {v1::RECOMPUTE_FULL, v1::RECOMPUTE_SELECTIVE}) {
      v1::JobSpec job = among;
      job.mutable_fsdp()->set_recompute(recompute);
      const LocalJobResult again = Train(job);
      ExpectSame(baseline, again, 0);
      EXPECT_EQ(baseline.reports[0][3].routing().SerializeAsString(),
                again.reports[0][3].routing().SerializeAsString());
    }
  }
}

TEST(Experts, SupportsDeepSeekRouting) {
  v1::JobSpec job = ExpertsJob();
  v1::Llama::Experts* experts = ExpertsOf(&job);
  experts->set_count(8);
  experts->set_per_token(3);
  experts->set_scores(v1::Llama::Experts::SCORES_SIGMOID);
  experts->set_selection_bias(true);
  experts->set_groups(4);
  experts->set_groups_per_token(2);
  experts->set_weight_scale(2.5);
  experts->set_shared_intermediate_size(24);
  const LocalJobResult one_rank = Train(job);
  for (const Case& c : {kShared, kAmong, Case{kNoShard, 4, 3, 1, 1, 4}, Case{kParams, 4, 1, 2, 1}}) {
    const LocalJobResult spread = Train(Spread(job, c));
    ExpectSame(one_rank, spread, kRoundOff);
    EXPECT_NEAR(one_rank.reports[0][0].routing().balance_loss(),
                spread.reports[0][0].routing().balance_loss(), 1e-4);
  }
}

TEST(Experts, FrozenExpertsAndRoutersDoNotMove) {
  for (const char* frozen : {"*.ffn.experts.*", "*.ffn.router", "layer.2.ffn.experts.w1"}) {
    v1::JobSpec job = ExpertsJob();
    job.mutable_train()->add_frozen(frozen);
    const LocalJobResult one_rank = Train(job);
    for (const Case& c : {kShared, kAmong}) ExpectSame(one_rank, Train(Spread(job, c)), kRoundOff);
  }
}

// The purpose of the balance loss.
TEST(Experts, BalanceLossEvensLoad) {
  v1::JobSpec job = ExpertsJob();
  job.mutable_train()->set_steps(40);
  ExpertsOf(&job)->set_z_loss(0);
  const auto last = [&job](double balance_loss) {
    ExpertsOf(&job)->set_balance_loss(balance_loss);
    return Train(job).reports[0].back().routing().balance_loss();
  };
  EXPECT_LT(last(1), last(0));
  EXPECT_LT(last(1), 1.05);
}

TEST(Experts, TrainsInNarrowTypes) {
  v1::JobSpec job = Spread(ExpertsJob(), kAmong);
  for (const v1::DType compute : {v1::DTYPE_BF16, v1::DTYPE_FP16}) {
    job.mutable_precision()->set_compute(compute);
    const LocalJobResult result = Train(job);
    EXPECT_LT(result.reports[0].back().loss(), result.reports[0].front().loss());
  }
}

// Router losses are scaled like the main loss: an fp16 step equals the fp32 step up to fp16 rounding.
TEST(Experts, RouterLossesAreLossScaled) {
  v1::JobSpec job = ExpertsJob();
  ExpertsOf(&job)->set_count(2);  // All tokens go to both: rounding cannot change the routing.
  ExpertsOf(&job)->set_balance_loss(0);
  ExpertsOf(&job)->set_z_loss(3);
  job.mutable_train()->set_steps(1);
  job.mutable_optimizer()->clear_clip_norm();
  const double exact = Train(job).reports[0][0].grad_norm();
  job.mutable_precision()->set_compute(v1::DTYPE_FP16);
  job.mutable_precision()->mutable_loss_scale()->set_initial(1024);
  EXPECT_NEAR(Train(job).reports[0][0].grad_norm(), exact, 0.02 * exact);
}

TEST(Experts, ResumesInAnotherMesh) {
  const TempDir dir;
  const LocalJobResult whole = Train(ExpertsJob());
  const Case tensor{kParams, 4, 1, 2, 1}, one_rank{kNoShard, 1, 1};
  const Case four{kNoShard, 4, 1, 1, 1, 4};
  for (const Case& from : {kShared, kAmong, tensor, one_rank}) {
    v1::JobSpec saving = Spread(ExpertsJob(), from);
    const std::string directory = dir.File(std::to_string(from.world * 100 + from.tensor * 10 + from.expert));
    saving.mutable_checkpoint()->set_dir(directory);
    saving.mutable_checkpoint()->set_every_steps(5);
    Train(saving);
    for (const Case& to : {kShared, kAmong, four, tensor, one_rank}) {
      v1::JobSpec job = Spread(ExpertsJob(), to);
      job.mutable_checkpoint()->set_load(directory + "/iter_0000005");
      const LocalJobResult resumed = Train(job);
      ASSERT_EQ(resumed.reports[0].size(), 5u);
      ExpectSameRest(whole, resumed, kRoundOff);
    }
  }
}

TEST(Experts, InitialValuesMatchOneRank) {
  v1::JobSpec job = ExpertsJob();
  job.mutable_train()->set_steps(1);
  job.mutable_optimizer()->mutable_adamw()->set_lr(1e-30);
  job.mutable_optimizer()->mutable_adamw()->set_weight_decay(0);
  const LocalJobResult one_rank = Train(job);
  for (const Case& c : {kShared, kAmong, Case{kParams, 4, 1, 2, 1}})
    EXPECT_EQ(Train(Spread(job, c)).weights, one_rank.weights);
}

// ---- Planted errors: a wrong plan must not be within rounding.

template <typename Corrupt>
Plan Corrupted(const Plan& plan, Corrupt spoil) {
  Plan bad = plan;
  for (Bucket& bucket : bad.layout.buckets) {
    if (bucket.params[0].partition.shard_group() == Group::kExpert) spoil(&bucket);
  }
  bad.program = CompileProgram(bad.spec, bad.model, bad.layout);
  return bad;
}

double FirstGradNorm(const Plan& plan) {
  const auto result = RunLocalJob(plan, {});
  EXPECT_TRUE(result.ok()) << result.status();
  return result->reports[0][0].grad_norm();
}

v1::JobSpec ExpertsAlone() {
  v1::JobSpec job = ExpertsJob();
  for (const char* frozen : {"embedding.*", "*.attention.*", "*norm*", "*.ffn.w*", "head.*", "*router"})
    job.mutable_train()->add_frozen(frozen);
  return Spread(job, {kNoShard, 4, 1, 1, 1, 2});
}

// The gradients of experts are summed over the ranks that hold the same experts, and only over those.
TEST(Experts, DetectsWrongGradientGroup) {
  const Plan good = *AcceptedPlan(ExpertsAlone());
  const double norm = FirstGradNorm(good);
  const Plan everyone = Corrupted(good, [](Bucket* bucket) { bucket->groups.reduce = Group::kShard; });
  const Plan nobody = Corrupted(good, [](Bucket* bucket) { bucket->groups.reduce = Group::kSelf; });
  EXPECT_TRUE(Verify(good.program, good.layout, good.spec).ok());
  for (const Plan& bad : {everyone, nobody}) {
    EXPECT_FALSE(Verify(bad.program, bad.layout, bad.spec).ok());
  }
  EXPECT_GT(std::abs(FirstGradNorm(everyone) - norm), 0.05 * norm);
}

TEST(Experts, DetectsReplicasCountedTwiceInNorm) {
  const Plan good = *AcceptedPlan(ExpertsAlone());
  const Plan bad = Corrupted(good, [](Bucket* bucket) { bucket->slices = 4; });
  const double norm = FirstGradNorm(good);
  EXPECT_GT(FirstGradNorm(bad), 1.4 * norm);  // The square root of two.
}

}  // namespace
}  // namespace fsdpd
