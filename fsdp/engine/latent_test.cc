// Multi-head latent attention: a job in every strategy and mesh, including tensor and context parallelism,
// matches the job on one rank up to rounding, with and without experts, and recompute is bit-identical.
#include <gtest/gtest.h>

#include "base/temp_dir.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

constexpr double kRoundOff = 1e-5;

// A small DeepSeek-V3: the first layer is dense.
v1::JobSpec LatentJob(bool experts) {
  v1::JobSpec job = TestJob();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_heads(3);
  llama->clear_kv_heads();
  llama->clear_head_size();
  llama->set_layers(4);
  v1::Llama::LatentAttention* latent = llama->mutable_latent_attention();
  latent->set_rank(7);
  latent->set_query_rank(5);
  latent->set_plain_head_size(5);
  latent->set_rotary_head_size(4);
  latent->set_value_head_size(6);
  if (experts) {
    v1::Llama::Experts* of = llama->mutable_experts();
    of->set_count(8);
    of->set_per_token(3);
    of->set_intermediate_size(12);
    of->set_dense_layers(1);
    of->set_scores(v1::Llama::Experts::SCORES_SIGMOID);
    of->set_selection_bias(true);
    of->set_shared_intermediate_size(12);
  }
  job.mutable_data()->mutable_synthetic()->set_vocab(12);  // Few words: easy to fit.
  job.mutable_optimizer()->set_clip_norm(0.5);
  return job;
}

struct Case {
  TestMesh mesh;
  int world = 2;
  int micro_batches = 1;
  int pipeline = 1;
  int expert = 1;
  int tensor = 1;
  int context = 1;
};

std::string NameOf(const Case& c) {
  return c.mesh.name + "_world" + std::to_string(c.world) + "_mb" + std::to_string(c.micro_batches) +
         "_pipeline" + std::to_string(c.pipeline) + "_expert" + std::to_string(c.expert) + "_tensor" +
         std::to_string(c.tensor) + "_context" + std::to_string(c.context);
}

v1::JobSpec Spread(const v1::JobSpec& job, const Case& c) {
  v1::JobSpec spread = Over(job, c.mesh, c.world, c.micro_batches);
  spread.mutable_parallel()->set_pipeline(c.pipeline);
  spread.mutable_parallel()->set_expert(c.expert);
  spread.mutable_parallel()->set_tensor(c.tensor);
  spread.mutable_parallel()->set_context(c.context);
  spread.mutable_train()->set_micro_batch(job.train().global_batch() * c.pipeline * c.tensor * c.context /
                                          c.world / c.micro_batches);
  return spread;
}

const TestMesh kNoShard{"no_shard", v1::STRATEGY_NO_SHARD};
const TestMesh kParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};
const Case kShared{kParams, 4, 3}, kAmong{kParams, 4, 3, 1, 2}, kStages{kParams, 4, 3, 2};

std::vector<Case> Cases() {
  const TestMesh optim{"optim", v1::STRATEGY_OPTIM};
  const TestMesh grads{"optim_grads", v1::STRATEGY_OPTIM_GRADS};
  const TestMesh hfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};
  std::vector<Case> cases;
  for (const TestMesh& mesh : {kNoShard, optim, grads, kParams}) cases.push_back({mesh, 2});
  for (const TestMesh& mesh : {kNoShard, optim, grads, kParams, hfsdp}) cases.push_back({mesh, 4, 3});
  cases.push_back({kNoShard, 4, 1, 1, 4});
  cases.push_back(kAmong);
  cases.push_back(kStages);
  cases.push_back({kNoShard, 2, 2, 2});
  return cases;
}

class LatentAttentionMesh : public ::testing::TestWithParam<Case> {};

TEST_P(LatentAttentionMesh, MatchesOneRank) {
  static const LocalJobResult* const experts = new LocalJobResult(Train(LatentJob(true)));
  static const LocalJobResult* const dense = new LocalJobResult(Train(LatentJob(false)));
  const LocalJobResult spread = Train(Spread(LatentJob(true), GetParam()));
  ExpectSame(*experts, spread, kRoundOff);
  EXPECT_LT(spread.reports[0].back().loss(), spread.reports[0].front().loss());
  if (GetParam().expert == 1) ExpectSame(*dense, Train(Spread(LatentJob(false), GetParam())), kRoundOff);
}

INSTANTIATE_TEST_SUITE_P(Meshes, LatentAttentionMesh, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<Case>& info) { return NameOf(info.param); });

// Sizes that four ranks can divide.
v1::JobSpec SplitJob(bool experts) {
  v1::JobSpec job = LatentJob(experts);
  job.mutable_model()->mutable_llama()->set_vocab_size(44);
  job.mutable_model()->mutable_llama()->set_heads(4);
  job.mutable_data()->set_sequence_length(24);
  return job;
}

const Case kCutHeads{kParams, 4, 3, 1, 1, 2}, kCutSamples{kParams, 4, 3, 1, 1, 1, 2};

std::vector<Case> Cuts() {
  const TestMesh optim{"optim", v1::STRATEGY_OPTIM};
  const TestMesh hfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};
  return {{kNoShard, 2, 1, 1, 1, 2},
          {kParams, 4, 2, 1, 1, 4},
          kCutHeads,
          {hfsdp, 8, 1, 1, 1, 2},
          {kNoShard, 2, 1, 1, 1, 1, 2},
          {optim, 4, 2, 1, 1, 1, 4},
          kCutSamples,
          {hfsdp, 8, 1, 1, 1, 1, 2},
          {kParams, 8, 1, 1, 1, 2, 2},
          {kParams, 8, 3, 2, 1, 2, 2},
          {kParams, 4, 3, 1, 2, 1, 2}};
}

class LatentAttentionTensorParallel : public ::testing::TestWithParam<Case> {};

TEST_P(LatentAttentionTensorParallel, MatchesOneRank) {
  static const LocalJobResult* const experts = new LocalJobResult(Train(SplitJob(true)));
  static const LocalJobResult* const dense = new LocalJobResult(Train(SplitJob(false)));
  ExpectSame(*experts, Train(Spread(SplitJob(true), GetParam())), kRoundOff);
  if (GetParam().expert == 1) ExpectSame(*dense, Train(Spread(SplitJob(false), GetParam())), kRoundOff);
}

INSTANTIATE_TEST_SUITE_P(Meshes, LatentAttentionTensorParallel, ::testing::ValuesIn(Cuts()),
                         [](const ::testing::TestParamInfo<Case>& info) { return NameOf(info.param); });

TEST(LatentAttention, TensorParallelRecomputeIsBitIdentical) {
  for (const Case& c : {kCutHeads, kCutSamples}) {
    const LocalJobResult baseline = Train(Spread(SplitJob(true), c));
    for (const v1::Recompute recompute : {v1::RECOMPUTE_FULL, v1::RECOMPUTE_SELECTIVE}) {
      v1::JobSpec job = Spread(SplitJob(true), c);
      job.mutable_fsdp()->set_recompute(recompute);
      ExpectSame(baseline, Train(job), 0);
    }
  }
}

TEST(LatentAttention, TensorParallelWithZeroBubble) {
  for (const bool experts : {true, false}) {
    const LocalJobResult one_rank = Train(SplitJob(experts));
    v1::JobSpec job = Spread(SplitJob(experts), {kNoShard, 8, 3, 2, 1, 2, 2});
    job.mutable_parallel()->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
    ExpectSame(one_rank, Train(job), kRoundOff);
  }
}

TEST(LatentAttention, TensorParallelOffloadIsBitIdentical) {
  for (const Case& c : {kCutHeads, kCutSamples}) {
    v1::JobSpec job = Spread(SplitJob(false), c);
    const LocalJobResult baseline = Train(job);
    job.mutable_fsdp()->mutable_offload()->set_activation_layers(2);
    ExpectSame(baseline, Train(job), 0);
  }
}

TEST(LatentAttention, TensorParallelDocuments) {
  v1::JobSpec job = SplitJob(false);
  job.mutable_data()->set_document_end_token(7);
  ExpectSame(Train(job), Train(Spread(job, kCutHeads)), kRoundOff);
}

// Queries without a latent are projected from tokens, per head.
TEST(LatentAttention, TensorParallelWithoutQueryLatent) {
  v1::JobSpec job = SplitJob(false);
  v1::Llama::LatentAttention* latent = job.mutable_model()->mutable_llama()->mutable_latent_attention();
  latent->clear_query_rank();
  latent->set_interleaved(false);
  const LocalJobResult one_rank = Train(job);
  for (const Case& c : {kCutHeads, kCutSamples}) ExpectSame(one_rank, Train(Spread(job, c)), kRoundOff);
}

TEST(LatentAttention, TensorParallelNarrowTypesAreClose) {
  v1::JobSpec job = SplitJob(false);
  job.mutable_precision()->set_compute(v1::DTYPE_BF16);
  const LocalJobResult one_rank = Train(job);
  for (const Case& c : {kCutHeads, kCutSamples}) ExpectSame(one_rank, Train(Spread(job, c)), 2e-2);
}

TEST(LatentAttention, RecomputeIsBitIdentical) {
  for (const Case& c : {kShared, kAmong, kStages}) {
    const LocalJobResult baseline = Train(Spread(LatentJob(true), c));
    for (const v1::Recompute recompute : {v1::RECOMPUTE_FULL, v1::RECOMPUTE_SELECTIVE}) {
      v1::JobSpec job = Spread(LatentJob(true), c);
      job.mutable_fsdp()->set_recompute(recompute);
      ExpectSame(baseline, Train(job), 0);
    }
  }
}

TEST(LatentAttention, SupportsDocuments) {
  v1::JobSpec job = LatentJob(false);
  job.mutable_data()->set_document_end_token(7);
  const LocalJobResult one_rank = Train(job);
  ExpectSame(one_rank, Train(Spread(job, kShared)), kRoundOff);
  EXPECT_NE(one_rank.weights, Train(LatentJob(false)).weights);
}

TEST(LatentAttention, SupportsNoQueryLatent) {
  v1::JobSpec job = LatentJob(false);
  v1::Llama::LatentAttention* latent = job.mutable_model()->mutable_llama()->mutable_latent_attention();
  latent->clear_query_rank();
  latent->set_interleaved(false);
  const LocalJobResult one_rank = Train(job);
  for (const Case& c : {kShared, kStages}) ExpectSame(one_rank, Train(Spread(job, c)), kRoundOff);
}

TEST(LatentAttention, TrainsInNarrowTypes) {
  v1::JobSpec job = Spread(LatentJob(true), kAmong);
  for (const v1::DType compute : {v1::DTYPE_BF16, v1::DTYPE_FP16}) {
    job.mutable_precision()->set_compute(compute);
    const LocalJobResult result = Train(job);
    EXPECT_LT(result.reports[0].back().loss(), result.reports[0].front().loss());
  }
}

TEST(LatentAttention, ResumesInAnotherMesh) {
  const TempDir dir;
  const LocalJobResult whole = Train(LatentJob(true));
  const Case one_rank{kNoShard, 1, 1};
  for (const Case& from : {kAmong, one_rank}) {
    v1::JobSpec saving = Spread(LatentJob(true), from);
    const std::string directory = dir.File(std::to_string(from.world));
    saving.mutable_checkpoint()->set_dir(directory);
    saving.mutable_checkpoint()->set_every_steps(3);
    Train(saving);
    for (const Case& to : {kShared, kStages, one_rank}) {
      v1::JobSpec job = Spread(LatentJob(true), to);
      job.mutable_checkpoint()->set_load(directory + "/iter_0000003");
      ExpectSameRest(whole, Train(job), kRoundOff);
    }
  }
}

TEST(LatentAttention, ResumesWithAnotherTensorDegree) {
  const TempDir dir;
  const LocalJobResult whole = Train(SplitJob(true));
  v1::JobSpec saving = Spread(SplitJob(true), kCutHeads);
  saving.mutable_checkpoint()->set_dir(dir.path());
  saving.mutable_checkpoint()->set_every_steps(3);
  Train(saving);
  for (const Case& to : {kCutSamples, Case{kNoShard, 1, 1}}) {
    v1::JobSpec job = Spread(SplitJob(true), to);
    job.mutable_checkpoint()->set_load(dir.File("iter_0000003"));
    ExpectSameRest(whole, Train(job), kRoundOff);
  }
}

}  // namespace
}  // namespace fsdpd
