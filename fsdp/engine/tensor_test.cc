// Tensor parallelism: a job with its matrices sharded over 2 or 4 ranks matches the job on one rank, in every
// strategy and mesh, up to rounding, since products and sums over shards are added in another order.
#include <gtest/gtest.h>

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
  int tensor = 2;
  int context = 1;
  int micro_batches = 1;
};

// Two key heads: with two ranks each has one, with four ranks two share one.
v1::JobSpec SplitJob() {
  v1::JobSpec job = TestJob();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(44);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  llama->set_head_size(6);
  job.mutable_data()->mutable_synthetic()->set_vocab(44);  // Tokens of every vocabulary shard.
  job.mutable_data()->set_sequence_length(24);
  job.mutable_optimizer()->set_clip_norm(0.5);
  return job;
}

// With fewer data-parallel groups, each reads more samples.
v1::JobSpec Cut(const v1::JobSpec& job, const Case& c) {
  v1::JobSpec cut = Over(job, c.mesh, c.world, c.micro_batches);
  cut.mutable_parallel()->set_tensor(c.tensor);
  cut.mutable_parallel()->set_context(c.context);
  cut.mutable_train()->set_micro_batch(job.train().global_batch() * c.tensor * c.context / c.world /
                                       c.micro_batches);
  return cut;
}

const TestMesh kNoShard{"no_shard", v1::STRATEGY_NO_SHARD};
const TestMesh kParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};

std::vector<Case> Cases() {
  const TestMesh optim{"optim", v1::STRATEGY_OPTIM};
  const TestMesh grads{"optim_grads", v1::STRATEGY_OPTIM_GRADS};
  const TestMesh hsdp{"hsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_NO_SHARD};
  const TestMesh hfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};
  std::vector<Case> cases;
  for (const TestMesh& mesh : {kNoShard, optim, grads, kParams}) {
    cases.push_back({mesh, 2, 2, 1, 1});
    cases.push_back({mesh, 4, 4, 1, 2});
    cases.push_back({mesh, 4, 2, 1, 3});
    cases.push_back({mesh, 8, 2, 2, 1});
  }
  for (const TestMesh& mesh : {hsdp, hfsdp}) {
    cases.push_back({mesh, 4, 2, 1, 1});
    cases.push_back({mesh, 8, 2, 1, 1});
    cases.push_back({mesh, 8, 4, 1, 3});
    cases.push_back({mesh, 8, 2, 2, 2});
  }
  return cases;
}

class Tensor : public ::testing::TestWithParam<Case> {};

TEST_P(Tensor, MatchesOneRank) {
  static const LocalJobResult* const one_rank = new LocalJobResult(Train(SplitJob()));
  const LocalJobResult shared = Train(Cut(SplitJob(), GetParam()));
  ExpectSame(*one_rank, shared, kRoundOff);
}

INSTANTIATE_TEST_SUITE_P(Meshes, Tensor, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           const Case& c = info.param;
                           return c.mesh.name + "_world" + std::to_string(c.world) + "_tensor" +
                                  std::to_string(c.tensor) + "_context" + std::to_string(c.context) + "_mb" +
                                  std::to_string(c.micro_batches);
                         });

const Case kShared{kParams, 4, 2, 1, 2};
const Case kOneKeyHeadOfTwo{kNoShard, 4, 4, 1, 1};

TEST(Tensor, InitialValuesMatchOneRank) {
  v1::JobSpec job = SplitJob();
  job.mutable_train()->set_steps(1);
  job.mutable_optimizer()->mutable_adamw()->set_lr(1e-30);
  job.mutable_optimizer()->mutable_adamw()->set_weight_decay(0);
  const LocalJobResult one_rank = Train(job);
  for (const Case& c : {kShared, kOneKeyHeadOfTwo}) EXPECT_EQ(Train(Cut(job, c)).weights, one_rank.weights);
}

TEST(Tensor, RecomputeIsBitIdentical) {
  const LocalJobResult baseline = Train(Cut(SplitJob(), kShared));
  for (const v1::Recompute recompute : {v1::RECOMPUTE_FULL, v1::RECOMPUTE_SELECTIVE}) {
    v1::JobSpec job = Cut(SplitJob(), kShared);
    job.mutable_fsdp()->set_recompute(recompute);
    ExpectSame(baseline, Train(job), 0);
  }
}

TEST(Tensor, SupportsBiasesAndQkNorm) {
  v1::JobSpec job = SplitJob();
  job.mutable_model()->mutable_llama()->set_qk_norm(true);
  job.mutable_model()->mutable_llama()->set_attention_bias(true);
  const LocalJobResult one_rank = Train(job);
  for (const Case& c : {kShared, kOneKeyHeadOfTwo, Case{kParams, 8, 4, 2, 1}})
    ExpectSame(one_rank, Train(Cut(job, c)), kRoundOff);
}

TEST(Tensor, SupportsOneKeyHead) {
  v1::JobSpec job = SplitJob();
  job.mutable_model()->mutable_llama()->set_kv_heads(1);
  const LocalJobResult one_rank = Train(job);
  for (const Case& c : {kShared, kOneKeyHeadOfTwo}) ExpectSame(one_rank, Train(Cut(job, c)), kRoundOff);
}

TEST(Tensor, TiedEmbeddings) {
  v1::JobSpec job = SplitJob();
  job.mutable_model()->mutable_llama()->set_tied_embeddings(true);
  const LocalJobResult one_rank = Train(job);
  for (const Case& c : {kShared, kOneKeyHeadOfTwo}) ExpectSame(one_rank, Train(Cut(job, c)), kRoundOff);
}

TEST(Tensor, FrozenParameters) {
  v1::JobSpec job = SplitJob();
  job.mutable_train()->add_frozen("embedding.*");
  job.mutable_train()->add_frozen("layer.0.attention.wk");
  job.mutable_train()->add_frozen("layer.1.ffn_norm");
  const LocalJobResult one_rank = Train(job);
  for (const Case& c : {kShared, kOneKeyHeadOfTwo}) ExpectSame(one_rank, Train(Cut(job, c)), kRoundOff);
}

TEST(Tensor, NarrowTypesAreClose) {
  v1::JobSpec job = SplitJob();
  job.mutable_precision()->set_compute(v1::DTYPE_BF16);
  ExpectSame(Train(job), Train(Cut(job, kShared)), 2e-2);
}

TEST(Tensor, ResumesWithAnotherDegree) {
  const TempDir dir;
  const LocalJobResult whole = Train(SplitJob());
  const Case four{kParams, 8, 4, 1, 1}, none{kParams, 2, 1, 1, 3};
  for (const Case& from : {kShared, four, none}) {
    v1::JobSpec saving = Cut(SplitJob(), from);
    const std::string directory = dir.File(std::to_string(from.tensor));
    saving.mutable_checkpoint()->set_dir(directory);
    saving.mutable_checkpoint()->set_every_steps(3);
    Train(saving);
    for (const Case& to : {kShared, four, none, Case{kNoShard, 4, 2, 2, 1}}) {
      v1::JobSpec job = Cut(SplitJob(), to);
      job.mutable_checkpoint()->set_load(directory + "/iter_0000003");
      const LocalJobResult resumed = Train(job);
      ASSERT_EQ(resumed.reports[0].size(), 3u);
      const std::string what = std::to_string(from.tensor) + " to " + std::to_string(to.tensor);
      const ::testing::ScopedTrace trace(__FILE__, __LINE__, what);
      ExpectSameRest(whole, resumed, kRoundOff);
    }
  }
}

// Ignored targets, short samples and evaluation: replicated values are counted once.
TEST(Tensor, CountsTargetsLikeOneRank) {
  const TempDir dir;
  const std::string path = dir.path() + "/text";
  std::ofstream(path)
      << "to be, or not to be, that is the question: whether tis nobler in the mind to suffer";
  v1::JobSpec job = SplitJob();
  job.mutable_model()->mutable_llama()->set_vocab_size(256);
  job.mutable_data()->clear_synthetic();
  job.mutable_data()->set_ignore_index(' ');
  v1::TokenFile* file = job.mutable_data()->add_tokens();
  file->set_path(path);
  file->set_type(v1::TOKEN_TYPE_U8);
  *job.mutable_data()->add_validation() = *file;
  job.mutable_train()->mutable_evaluation()->set_every_steps(3);
  const LocalJobResult one_rank = Train(job), shared = Train(Cut(job, kShared));
  ExpectSame(one_rank, shared, kRoundOff);
  EXPECT_EQ(ExpectSameEvaluations(one_rank, shared, kRoundOff), 2);
}

// Only norms are trained: next to the gradients of matrices theirs would be negligible.
v1::JobSpec NormsAlone() {
  v1::JobSpec job = SplitJob();
  for (const char* frozen : {"embedding.*", "*.attention.*", "*.ffn.*", "head.output"})
    job.mutable_train()->add_frozen(frozen);
  return job;
}

TEST(Tensor, TrainsOnlyNorms) {
  const LocalJobResult one_rank = Train(NormsAlone());
  for (const Case& c : {kShared, kOneKeyHeadOfTwo, Case{kParams, 8, 2, 2, 1}})
    ExpectSame(one_rank, Train(Cut(NormsAlone(), c)), kRoundOff);
}

// ---- Planted errors: a wrong plan must not be within rounding.

Plan PlanOf(const v1::JobSpec& job) { return *AcceptedPlan(job); }

// Parameters that tensor parallelism replicates.
template <typename Corrupt>
void CorruptComplete(Plan* plan, Corrupt spoil) {
  for (Bucket& bucket : plan->layout.buckets) {
    if (!bucket.params[0].partition.is_partitioned()) spoil(&bucket);
  }
  plan->program = CompileProgram(plan->spec, plan->model, plan->layout);
}

double FirstGradNorm(const Plan& plan) {
  const auto result = RunLocalJob(plan, {});
  EXPECT_TRUE(result.ok()) << result.status();
  return result->reports[0][0].grad_norm();
}

TEST(Tensor, DetectsUnsummedNormGradients) {
  const v1::JobSpec job = Cut(NormsAlone(), Case{kNoShard, 2, 2, 1, 1});
  const Plan good = PlanOf(job);
  Plan bad = good;
  CorruptComplete(&bad, [](Bucket* bucket) { bucket->groups.reduce = Group::kShard; });
  EXPECT_TRUE(Verify(good.program, good.layout, good.spec).ok());
  EXPECT_FALSE(Verify(bad.program, bad.layout, bad.spec).ok());
  const double norm = FirstGradNorm(good);
  EXPECT_GT(std::abs(FirstGradNorm(bad) - norm), 0.1 * norm);
}

TEST(Tensor, DetectsReplicasCountedTwiceInNorm) {
  const v1::JobSpec job = Cut(NormsAlone(), Case{kNoShard, 2, 2, 1, 1});
  const Plan good = PlanOf(job);
  Plan bad = good;
  CorruptComplete(&bad, [](Bucket* bucket) { bucket->slices = 2; });
  const double norm = FirstGradNorm(good);
  EXPECT_GT(FirstGradNorm(bad), 1.4 * norm);  // The square root of two.
}

}  // namespace
}  // namespace fsdpd
