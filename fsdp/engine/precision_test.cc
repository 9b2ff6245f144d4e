// Narrow types and numerical failures: gradients in bf16, the loss scale of fp16, and nonfinite steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/temp_dir.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

const TestMesh kNoShard{"no_shard", v1::STRATEGY_NO_SHARD};
const TestMesh kOptimGrads{"optim_grads", v1::STRATEGY_OPTIM_GRADS};
const TestMesh kOptimGradsParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};
const TestMesh kHsdp{"hsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_NO_SHARD};
const TestMesh kHfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};

// With 8 mantissa bits, gradients change the loss in the third digit.
constexpr double kBf16Loss = 1e-2;

void ExpectLossesNear(const LocalJobResult& expected, const LocalJobResult& actual, double relative) {
  ASSERT_EQ(expected.reports[0].size(), actual.reports[0].size());
  for (size_t s = 0; s < expected.reports[0].size(); ++s) {
    const double loss = expected.reports[0][s].loss();
    EXPECT_NEAR(actual.reports[0][s].loss(), loss, relative * loss) << "step " << s + 1;
  }
}

// A short step along the gradient lowers the loss by its length times the norm. So the applied gradient and
// the reported norm are those of the mean over counted targets.
TEST(Precision, GradientNormPredictsLossChange) {
  const TempDir dir;
  {
    std::ofstream tokens(dir.File("tokens.bin"), std::ios::binary);
    // Every sample of the first epoch is the same.
    for (int sample = 0; sample < 5000; ++sample) tokens << std::string("\0\1\0\1\0\1\0\1\0", 9);
  }
  constexpr double kRate = 1e-3;
  for (const double clip_norm : {0.0, 0.5}) {
    for (const TestMesh& mesh : {kNoShard, kHsdp, kHfsdp}) {
      v1::JobSpec job = Over(TestJob(), mesh, 4, 3);
      job.mutable_model()->mutable_llama()->set_vocab_size(256);
      job.mutable_data()->clear_synthetic();
      v1::TokenFile* file = job.mutable_data()->add_tokens();
      file->set_path(dir.File("tokens.bin"));
      file->set_type(v1::TOKEN_TYPE_U8);
      job.mutable_data()->set_ignore_index(1);  // Half of the targets.
      job.mutable_optimizer()->clear_adamw();
      job.mutable_optimizer()->mutable_sgd()->set_lr(kRate);
      job.mutable_optimizer()->set_clip_norm(clip_norm);
      job.mutable_train()->set_steps(2);
      const LocalJobResult result = Train(job);
      const v1::StepReport& step = result.reports[0][0];
      const double norm = step.grad_norm();
      EXPECT_GT(norm, 2 * clip_norm);
      const double length = kRate * (clip_norm > 0 ? clip_norm : norm);
      EXPECT_NEAR(step.loss() - result.reports[0][1].loss(), length * norm, 0.05 * length * norm)
          << mesh.name;
    }
  }
}

TEST(Precision, Bf16GradientsAreCloseToFp32) {
  const LocalJobResult fp32 = Train(TestJob());
  for (const TestMesh& mesh : {kOptimGrads, kOptimGradsParams, kHsdp, kHfsdp}) {
    for (const v1::DType wire : {v1::DTYPE_FP32, v1::DTYPE_BF16}) {
      for (const v1::DType main : {v1::DTYPE_FP32, v1::DTYPE_BF16}) {
        if (mesh.outer_size > 1 && main == v1::DTYPE_BF16) continue;  // The spec rules refuse it.
        SCOPED_TRACE(mesh.name + " wire " + v1::DType_Name(wire) + " main " + v1::DType_Name(main));
        v1::JobSpec job = Over(TestJob(), mesh, 4, 3);
        job.mutable_precision()->set_grad_comm(wire);
        job.mutable_precision()->set_main_grads(main);
        const LocalJobResult narrow = Train(job);
        ExpectLossesNear(fp32, narrow, kBf16Loss);
        if (wire == v1::DTYPE_BF16 || main == v1::DTYPE_BF16) {
          EXPECT_NE(narrow.weights, fp32.weights);  // The setting was effective.
        }
      }
    }
  }
}

TEST(Precision, Bf16ComputeAndMomentsAreCloseToFp32) {
  v1::JobSpec job = Over(TestJob(), kHfsdp, 4, 3);
  const LocalJobResult fp32 = Train(job);
  job.mutable_precision()->set_compute(v1::DTYPE_BF16);
  job.mutable_precision()->set_grad_comm(v1::DTYPE_BF16);
  job.mutable_precision()->set_moments(v1::DTYPE_BF16);
  ExpectLossesNear(fp32, Train(job), 3 * kBf16Loss);
}

// Quantization error is noise: a moment is correct in the mean, and at TestJob's betas errors decay.
TEST(Precision, Fp8MomentsAreCloseToFp32) {
  v1::JobSpec job = TestJob();
  job.mutable_optimizer()->set_clip_norm(1);
  const LocalJobResult fp32 = Train(job);
  job.mutable_precision()->set_moments(v1::DTYPE_FP8);
  const LocalJobResult alone = Train(job);
  ExpectLossesNear(fp32, alone, 3 * kBf16Loss);
  EXPECT_NE(alone.weights, fp32.weights);
  // Replicas round alike, at any shard boundaries: only the order of gradient sums differs.
  for (const TestMesh& mesh : {kNoShard, kOptimGradsParams, kHsdp, kHfsdp}) {
    SCOPED_TRACE(mesh.name);
    ExpectLossesNear(alone, Train(Over(job, mesh, 4)), 3 * kBf16Loss);
  }
}

TEST(Precision, NonfiniteStepEndsAllRanks) {
  for (const bool ahead : {false, true}) {
    v1::JobSpec job = Over(TestJob(), kHfsdp, 4, 3);
    job.mutable_optimizer()->mutable_adamw()->set_lr(1e30);
    LocalJobOptions options;
    options.run_ahead_on_cpu = ahead;
    const auto result = RunLocalJob(*AcceptedPlan(job), options);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kOutOfRange) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("step 2: not finite"));
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("lower optimizer.adamw.lr"));
  }
}

v1::JobSpec Fp16Job(double scale, int64_t growth_interval) {
  v1::JobSpec job = Over(TestJob(), kOptimGradsParams, 2, 3);
  job.mutable_precision()->set_compute(v1::DTYPE_FP16);
  job.mutable_precision()->mutable_loss_scale()->set_initial(scale);
  job.mutable_precision()->mutable_loss_scale()->set_growth_interval(growth_interval);
  return job;
}

std::vector<float> SomeWeights(const v1::JobSpec& job) {
  std::vector<float> weights(AcceptedPlan(job)->layout.elements());
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = 0.02f * static_cast<float>(i % 17) - 0.15f;
  return weights;
}

TEST(LossScale, Fp16MatchesFp32AtAnyScale) {
  const LocalJobResult fp32 = Train(TestJob());
  for (const double scale : {64.0, 4096.0}) {
    const LocalJobResult fp16 = Train(Fp16Job(scale, 1000));
    ExpectLossesNear(fp32, fp16, kBf16Loss);
    for (size_t s = 0; s < fp16.reports[0].size(); ++s) {
      const v1::StepReport& report = fp16.reports[0][s];
      EXPECT_EQ(report.loss_scale(), scale);
      EXPECT_FALSE(report.skipped());
      // Of the true gradient: without the scale.
      EXPECT_NEAR(report.grad_norm(), fp32.reports[0][s].grad_norm(), 0.05 * fp32.reports[0][s].grad_norm());
    }
  }
}

TEST(LossScale, OverflowSkipsStepAndHalvesScale) {
  for (const bool ahead : {false, true}) {
    const double huge = std::ldexp(1, 40);
    v1::JobSpec job = Fp16Job(huge, 1000);
    job.mutable_train()->set_steps(3);
    LocalJobOptions options;
    options.weights = SomeWeights(job);
    options.run_ahead_on_cpu = ahead;
    const LocalJobResult result = Train(job, options);
    EXPECT_EQ(result.weights, options.weights);
    for (const std::vector<v1::StepReport>& rank : result.reports) {
      ASSERT_EQ(rank.size(), 3u);
      for (int s = 0; s < 3; ++s) {
        EXPECT_TRUE(rank[s].skipped());
        EXPECT_EQ(rank[s].loss_scale(), std::ldexp(huge, -s));
        EXPECT_TRUE(std::isfinite(rank[s].loss()));  // The loss itself is not scaled.
      }
    }
  }
}

TEST(LossScale, DecreasesUntilStepsFit) {
  v1::JobSpec job = Fp16Job(std::ldexp(1, 26), 1000);
  job.mutable_train()->set_steps(30);
  const LocalJobResult result = Train(job);
  ASSERT_EQ(result.reports[0].size(), 30u);
  EXPECT_TRUE(result.reports[0].front().skipped());
  EXPECT_FALSE(result.reports[0].back().skipped());
  EXPECT_LT(result.reports[0].back().loss_scale(), std::ldexp(1, 26));
  EXPECT_LT(result.reports[0].back().loss(), 0.8 * result.reports[0].front().loss());
}

TEST(LossScale, DoublesAfterGrowthInterval) {
  const LocalJobResult result = Train(Fp16Job(8, 2));
  std::vector<double> scales;
  for (const v1::StepReport& report : result.reports[0]) scales.push_back(report.loss_scale());
  EXPECT_THAT(scales, ::testing::ElementsAre(8, 8, 16, 16, 32, 32));
}

TEST(LossScale, OnlyFp16ReportsIt) {
  const LocalJobResult result = Train(TestJob());
  for (const v1::StepReport& report : result.reports[0]) EXPECT_FALSE(report.has_loss_scale());
}

TEST(LossScale, MinimumScaleEndsTheJob) {
  v1::JobSpec job = Fp16Job(4, 1000);
  job.mutable_optimizer()->mutable_adamw()->set_lr(1e30);
  job.mutable_train()->set_steps(20);
  const auto result = RunLocalJob(*AcceptedPlan(job));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kOutOfRange) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("with the loss scale lowered to"));
}

}  // namespace
}  // namespace fsdpd
