// FP8 matrix products: close to bf16, equal across strategies, meshes and recompute, and correct across a
// checkpoint and a nonfinite step.
#include <gtest/gtest.h>

#include <cmath>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

const TestMesh kNoShard{"no_shard", v1::STRATEGY_NO_SHARD};
const TestMesh kOptim{"optim", v1::STRATEGY_OPTIM};
const TestMesh kOptimGrads{"optim_grads", v1::STRATEGY_OPTIM_GRADS};
const TestMesh kParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};
const TestMesh kHsdp{"hsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_NO_SHARD};
const TestMesh kHfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};

// bf16 rounds the inputs and outputs of FP8 products: if a sum has another order, a value may round to its
// neighbor, and then the next one to another FP8 value.
constexpr double kRoundings = 2e-3;

// Sizes divisible by 16, also with two tensor-parallel ranks; the tokens of a micro-batch are not.
v1::JobSpec Fp8Job() {
  v1::JobSpec job = TestJob();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(64);
  llama->set_hidden_size(64);
  llama->set_intermediate_size(96);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  job.mutable_optimizer()->mutable_adamw()->set_lr(3e-3);
  job.mutable_optimizer()->set_clip_norm(1);
  job.mutable_precision()->set_compute(v1::DTYPE_FP8);
  job.mutable_precision()->set_grad_comm(v1::DTYPE_FP32);
  return job;
}

v1::JobSpec Bf16Job() {
  v1::JobSpec job = Fp8Job();
  job.mutable_precision()->set_compute(v1::DTYPE_BF16);
  return job;
}

v1::JobSpec Keeping(v1::JobSpec job, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) job.mutable_precision()->mutable_fp8()->add_keep_bf16(pattern);
  return job;
}

double Distance(const LocalJobResult& one, const LocalJobResult& other) {
  double sum = 0;
  for (size_t i = 0; i < one.weights.size(); ++i) sum += std::pow(one.weights[i] - other.weights[i], 2);
  return std::sqrt(sum);
}

TEST(Fp8, IsCloseToBf16) {
  const LocalJobResult bf16 = Train(Bf16Job()), fp8 = Train(Fp8Job());
  EXPECT_NE(fp8.weights, bf16.weights);
  for (size_t s = 0; s < bf16.reports[0].size(); ++s) {
    const double loss = bf16.reports[0][s].loss(), norm = bf16.reports[0][s].grad_norm();
    EXPECT_NEAR(fp8.reports[0][s].loss(), loss, 1e-2 * loss);
    EXPECT_NEAR(fp8.reports[0][s].grad_norm(), norm, 5e-2 * norm);
  }
  EXPECT_LT(fp8.reports[0].back().loss(), fp8.reports[0].front().loss());
}

TEST(Fp8, ExcludedMatricesAreNotQuantized) {
  const LocalJobResult bf16 = Train(Bf16Job()), fp8 = Train(Fp8Job());
  const LocalJobResult first = Train(Keeping(Fp8Job(), {"layer.0.*"}));
  EXPECT_NE(first.weights, fp8.weights);
  EXPECT_NE(first.weights, bf16.weights);
  EXPECT_LT(Distance(first, bf16), Distance(fp8, bf16));
  // Excluding one of the matrices of a fused product excludes all three.
  EXPECT_EQ(Train(Keeping(Fp8Job(), {"*.attention.w*", "*.w1"})).weights,
            Train(Keeping(Fp8Job(), {"*.attention.wo", "*.attention.wk", "*.w3"})).weights);
}

TEST(Fp8, StrategiesAreBitIdentical) {
  const LocalJobResult expected = Train(Over(Fp8Job(), kNoShard, 4));
  for (const TestMesh& mesh : {kOptim, kOptimGrads, kParams, kHsdp, kHfsdp}) {
    SCOPED_TRACE(mesh.name);
    ExpectSame(expected, Train(Over(Fp8Job(), mesh, 4)), kRoundings);
  }
}

// Scales depend on a rank's own tokens, so they differ between meshes.
TEST(Fp8, WorldSizesAndMicroBatchesAreClose) {
  const LocalJobResult expected = Train(Fp8Job());
  ExpectSame(expected, Train(Over(Fp8Job(), kParams, 2)), 2 * kRoundings);
  ExpectSame(expected, Train(Over(Fp8Job(), kParams, 4, 3)), 2 * kRoundings);
  ExpectSame(expected, Train(Over(Fp8Job(), kNoShard, 2, 3)), 2 * kRoundings);
}

TEST(Fp8, RecomputeIsBitIdentical) {
  v1::JobSpec job = Over(Fp8Job(), kParams, 2, 2);
  const LocalJobResult expected = Train(job);
  for (const v1::Recompute recompute : {v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
    job.mutable_fsdp()->set_recompute(recompute);
    ExpectSame(expected, Train(job), 0);
  }
}

TEST(Fp8, AddsBiasesInBf16) {
  v1::JobSpec job = Fp8Job(), bf16 = Bf16Job();
  for (v1::JobSpec* each : {&job, &bf16}) each->mutable_model()->mutable_llama()->set_attention_bias(true);
  const LocalJobResult near = Train(bf16);
  const LocalJobResult alone = Train(job);
  for (size_t s = 0; s < near.reports[0].size(); ++s) {
    EXPECT_NEAR(alone.reports[0][s].loss(), near.reports[0][s].loss(), 1e-2 * near.reports[0][s].loss());
  }
  ExpectSame(alone, Train(Over(job, kParams, 2)), 2 * kRoundings);
}

TEST(Fp8, ParallelMeshesAreClose) {
  const LocalJobResult expected = Train(Fp8Job());
  v1::JobSpec tensor = Over(Fp8Job(), kParams, 2);
  tensor.mutable_train()->set_micro_batch(12);
  v1::JobSpec context = tensor, pipeline = tensor, zero_bubble = tensor;
  tensor.mutable_parallel()->set_tensor(2);
  context.mutable_parallel()->set_context(2);
  pipeline.mutable_parallel()->set_pipeline(2);
  pipeline.mutable_train()->set_micro_batch(4);
  zero_bubble = pipeline;
  zero_bubble.mutable_fsdp()->set_strategy(v1::STRATEGY_OPTIM);
  zero_bubble.mutable_parallel()->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
  for (const v1::JobSpec& job : {tensor, context, pipeline, zero_bubble}) {
    SCOPED_TRACE(job.parallel().ShortDebugString());
    ExpectSame(expected, Train(job), 3 * kRoundings);
  }
}

// Some matrices of a fused product are then in another bucket, and are copied next to each other.
TEST(Fp8, FrozenMatrixDoesNotMove) {
  v1::JobSpec job = Over(Fp8Job(), kParams, 2);
  for (const char* frozen : {"*.attention.wk", "layer.0.ffn.w1", "layer.1.ffn.*"})
    job.mutable_train()->add_frozen(frozen);
  v1::JobSpec still = Over(Fp8Job(), kParams, 2);
  for (const char* frozen : {"*.attention.wk", "layer.0.ffn.w1", "layer.1.ffn.*"}) {
    v1::ParamGroup* const group = still.mutable_optimizer()->add_groups();
    group->add_params(frozen);
    group->set_lr_scale(0);
  }
  for (v1::JobSpec* each : {&job, &still}) each->mutable_optimizer()->clear_clip_norm();
  const LocalJobResult frozen = Train(job), unmoved = Train(still);
  EXPECT_LT(frozen.reports[0].back().loss(), frozen.reports[0].front().loss());
  EXPECT_EQ(frozen.weights, unmoved.weights);
}

// Each rank then multiplies the rows of one head, whose scales are a part of the matrix's.
TEST(Fp8, SharedKeyHeadIsClose) {
  v1::JobSpec job = Fp8Job();
  job.mutable_model()->mutable_llama()->set_kv_heads(1);
  const LocalJobResult expected = Train(job);
  v1::JobSpec tensor = Over(job, kParams, 2);
  tensor.mutable_train()->set_micro_batch(12);
  tensor.mutable_parallel()->set_tensor(2);
  ExpectSame(expected, Train(tensor), 3 * kRoundings);
}

// A dense layer, then two MoE layers with a shared expert.
v1::JobSpec ExpertsJob(v1::DType compute) {
  v1::JobSpec job = Fp8Job();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_layers(3);
  v1::Llama::Experts* experts = llama->mutable_experts();
  experts->set_count(4);
  experts->set_per_token(2);
  experts->set_intermediate_size(32);
  experts->set_shared_intermediate_size(32);
  experts->set_dense_layers(1);
  job.mutable_precision()->set_compute(compute);
  job.mutable_train()->set_steps(4);
  return job;
}

TEST(Fp8, ExpertsAreCloseToBf16) {
  const LocalJobResult bf16 = Train(ExpertsJob(v1::DTYPE_BF16)), fp8 = Train(ExpertsJob(v1::DTYPE_FP8));
  const LocalJobResult attention = Train(Keeping(ExpertsJob(v1::DTYPE_FP8), {"*.experts.*", "*.shared.*"}));
  EXPECT_LT(Distance(attention, bf16), Distance(fp8, bf16));
  for (size_t s = 0; s < bf16.reports[0].size(); ++s) {
    const double loss = bf16.reports[0][s].loss();
    EXPECT_NEAR(fp8.reports[0][s].loss(), loss, 1e-2 * loss);
  }
  EXPECT_LT(fp8.reports[0].back().loss(), fp8.reports[0].front().loss());
}

// Also with expert parallelism, where quantized rows are dispatched.
TEST(Fp8, ExpertMeshesMatch) {
  const LocalJobResult expected = Train(ExpertsJob(v1::DTYPE_FP8));
  v1::JobSpec job = Over(ExpertsJob(v1::DTYPE_FP8), kParams, 2);
  const LocalJobResult shared = Train(job);
  ExpectSame(expected, shared, 3 * kRoundings);
  job.mutable_fsdp()->set_recompute(v1::RECOMPUTE_FULL);
  ExpectSame(shared, Train(job), 0);
  for (const TestMesh& mesh : {kOptim, kParams}) {
    v1::JobSpec among = Over(ExpertsJob(v1::DTYPE_FP8), mesh, 4);
    among.mutable_parallel()->set_expert(2);
    ExpectSame(expected, Train(among), 3 * kRoundings);
  }
  v1::JobSpec tensor = Over(ExpertsJob(v1::DTYPE_FP8), kParams, 2);
  tensor.mutable_train()->set_micro_batch(12);
  tensor.mutable_parallel()->set_tensor(2);
  ExpectSame(expected, Train(tensor), 3 * kRoundings);
}

TEST(Fp8, LatentAttentionIsCloseToBf16) {
  v1::JobSpec job = ExpertsJob(v1::DTYPE_FP8);
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->clear_kv_heads();
  v1::Llama::LatentAttention* latent = llama->mutable_latent_attention();
  latent->set_rank(32);
  latent->set_query_rank(32);
  latent->set_plain_head_size(16);
  latent->set_rotary_head_size(8);
  latent->set_value_head_size(16);
  const LocalJobResult fp8 = Train(job);
  ExpectSame(fp8, Train(Over(job, kParams, 2)), 3 * kRoundings);
  job.mutable_precision()->set_compute(v1::DTYPE_BF16);
  const LocalJobResult bf16 = Train(job);
  EXPECT_NE(fp8.weights, bf16.weights);
  EXPECT_NEAR(fp8.reports[0].back().loss(), bf16.reports[0].back().loss(),
              1e-2 * bf16.reports[0].back().loss());
}

// Gradients have a much wider range than weights, and the scale of a row of weights is a power of two.
TEST(Fp8, ReportsQuantization) {
  for (const v1::JobSpec& job : {Over(Fp8Job(), kParams, 2), ExpertsJob(v1::DTYPE_FP8)}) {
    const LocalJobResult result = Train(job);
    for (const v1::StepReport& report : result.reports[0]) {
      ASSERT_EQ(report.fp8_size(), 3);
      for (int c = 0; c < 3; ++c) {
        const v1::StepReport::Fp8Stats& of = report.fp8(c);
        EXPECT_EQ(of.kind(), c + 1);
        EXPECT_GT(of.values(), 0);
        EXPECT_GE(of.underflows(), 0);
        EXPECT_LT(of.underflows(), of.values() / 4);
        EXPECT_GT(of.min_scale(), 0);
        EXPECT_LE(of.min_scale(), of.max_scale());
        EXPECT_LT(of.max_scale(), 1);
      }
      int exponent = 0;
      EXPECT_EQ(std::frexp(report.fp8(0).max_scale(), &exponent), 0.5);
    }
  }
  EXPECT_EQ(Train(Bf16Job()).reports[0][0].fp8_size(), 0);
}

TEST(Fp8, ResumeIsBitIdentical) {
  const TempDir dir;
  v1::JobSpec job = Over(Fp8Job(), kParams, 2);
  job.mutable_checkpoint()->set_dir(dir.File("saved"));
  job.mutable_checkpoint()->set_every_steps(3);
  const LocalJobResult whole = Train(job);
  job.clear_checkpoint();
  job.mutable_checkpoint()->set_load(CheckpointPath(dir.File("saved"), 3));
  ExpectSameRest(whole, Train(job), 0);
  // Bucket boundaries differ in the other mesh.
  ExpectSameRest(whole, Train(Over(job, kParams, 3)), 2 * kRoundings);
  job.mutable_precision()->set_compute(v1::DTYPE_BF16);
  EXPECT_LT(Train(job).reports[0].back().loss(), whole.reports[0].front().loss());
}

TEST(Fp8, SkipsNonfiniteStepOnEveryRank) {
  v1::JobSpec job = Over(Fp8Job(), kParams, 2);
  job.mutable_optimizer()->clear_clip_norm();
  job.mutable_optimizer()->mutable_adamw()->set_lr(1e30);
  job.mutable_train()->mutable_on_nonfinite()->set_action(v1::STEP_ACTION_SKIP);
  job.mutable_train()->mutable_on_nonfinite()->set_max(10);
  const LocalJobResult result = Train(job);
  EXPECT_FALSE(result.reports[0][0].skipped());
  EXPECT_TRUE(result.reports[0][1].skipped());
}

}  // namespace
}  // namespace fsdpd
