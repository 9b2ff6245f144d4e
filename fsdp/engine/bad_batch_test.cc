// End-to-end tests of bad batches: skipped, ending the run, or skipped after a rewind to a checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/engine/bad_step.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const TestMesh kNoShard{"no_shard", v1::STRATEGY_NO_SHARD};
const TestMesh kOptim{"optim", v1::STRATEGY_OPTIM};
const TestMesh kParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};
const TestMesh kHfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};

constexpr int kBadToken = 36;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct World {
  TestMesh mesh;
  int ranks;
};
const World kWorlds[] = {{kNoShard, 1}, {kOptim, 2}, {kParams, 3}, {kHfsdp, 4}};

// Jobs of ten steps. A few samples consist of a token that no other sample contains, and only the embedding
// of that token has values that training never produces.
class BadBatch : public ::testing::Test {
 protected:
  // Samples of 9 tokens; 160 per epoch, of which ten steps use 120.
  v1::JobSpec JobOver(const std::vector<int>& bad_samples, const World& world = kWorlds[0]) {
    const std::string path = dir_.File("tokens-" + std::to_string(files_++));
    std::ofstream file(path, std::ios::binary);
    std::vector<int> tokens(9 * 160);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int>(i * i % 7);
    for (const int sample : bad_samples) {
      for (int i = 2; i < 7; ++i) tokens[9 * sample + i] = kBadToken;
    }
    for (const int token : tokens) file.put(static_cast<char>(token));
    v1::JobSpec job = Over(TestJob(), world.mesh, world.ranks);
    job.mutable_model()->mutable_llama()->set_vocab_size(256);
    job.mutable_data()->clear_synthetic();
    v1::TokenFile* data = job.mutable_data()->add_tokens();
    data->set_path(path);
    data->set_type(v1::TOKEN_TYPE_U8);
    job.mutable_train()->set_steps(10);
    return job;
  }

  static LocalJobOptions Options(const v1::JobSpec& job, float bad_embedding, bool ahead = false) {
    LocalJobOptions options;
    options.run_ahead_on_cpu = ahead;
    options.weights.resize(AcceptedPlan(job)->layout.elements());
    for (size_t i = 0; i < options.weights.size(); ++i)
      options.weights[i] = 0.1f * static_cast<float>(static_cast<int>(i * 31 % 17) - 8);
    // The embedding is first: rows of 20.
    std::fill_n(options.weights.begin() + kBadToken * 20L, 20, bad_embedding);
    return options;
  }

  TempDir dir_;
  int files_ = 0;
};

std::vector<v1::BadStep> BadStepsOf(const LocalJobResult& result, int rank = 0) {
  std::vector<v1::BadStep> found;
  for (const v1::StepReport& report : result.reports[rank]) {
    EXPECT_EQ(report.skipped(), report.has_bad_step());
    if (report.has_bad_step()) found.push_back(report.bad_step());
  }
  return found;
}

void SkipNonfinite(v1::JobSpec* job, int64_t max = 10) {
  job->mutable_train()->mutable_on_nonfinite()->set_action(v1::STEP_ACTION_SKIP);
  job->mutable_train()->mutable_on_nonfinite()->set_max(max);
}

void SkipSpikes(v1::JobSpec* job, int64_t max = 10) {
  v1::OnSpike* on = job->mutable_train()->mutable_on_spike();
  on->set_action(v1::STEP_ACTION_SKIP);
  on->set_max(max);
  on->set_grad_norm_factor(3);
  on->set_window(4);
}

// Runs the same updates on the same batches, without ever reading the samples of those steps.
LocalJobResult Without(const std::vector<v1::BadStep>& steps, v1::JobSpec job, LocalJobOptions options) {
  for (const v1::BadStep& step : steps)
    options.skipped_samples.push_back({step.first_sample(), step.end_sample()});
  job.mutable_train()->set_steps(job.train().steps() - static_cast<int64_t>(steps.size()));
  return Train(job, options);
}

TEST_F(BadBatch, SkipsNonfinite) {
  for (const World& world : kWorlds) {
    for (const bool ahead : {false, true}) {
      SCOPED_TRACE(world.mesh.name + (ahead ? " ahead" : ""));
      v1::JobSpec job = JobOver({20, 60}, world);
      SkipNonfinite(&job);
      const LocalJobOptions options = Options(job, kInfinity, ahead);
      const LocalJobResult result = Train(job, options);
      ASSERT_THAT(result.reports[0], SizeIs(10));
      const std::vector<v1::BadStep> bad = BadStepsOf(result);
      ASSERT_THAT(bad, SizeIs(2));
      for (size_t rank = 0; rank < result.reports.size(); ++rank) {
        const std::vector<v1::BadStep> same = BadStepsOf(result, static_cast<int>(rank));
        ASSERT_THAT(same, SizeIs(2));
        EXPECT_EQ(same[1].step(), bad[1].step());
      }
      for (const v1::BadStep& step : bad) {
        EXPECT_EQ(step.kind(), v1::BAD_STEP_KIND_NONFINITE);
        EXPECT_EQ(step.first_sample(), 12 * (step.step() - 1));
        EXPECT_EQ(step.end_sample(), 12 * step.step());
        EXPECT_FALSE(std::isfinite(step.loss()));
        EXPECT_GT(step.step(), 1);
        EXPECT_LE(step.step(), 10);
      }
      const LocalJobResult without = Without(bad, job, options);
      EXPECT_THAT(BadStepsOf(without), IsEmpty());
      EXPECT_EQ(result.weights, without.weights);
      EXPECT_NE(result.weights, options.weights);
    }
  }
}

TEST_F(BadBatch, SkipsSpike) {
  for (const World& world : kWorlds) {
    for (const bool ahead : {false, true}) {
      SCOPED_TRACE(world.mesh.name + (ahead ? " ahead" : ""));
      v1::JobSpec job = JobOver({60}, world);
      SkipSpikes(&job);
      const LocalJobOptions options = Options(job, 0, ahead);
      const LocalJobResult result = Train(job, options);
      const std::vector<v1::BadStep> bad = BadStepsOf(result);
      ASSERT_THAT(bad, SizeIs(1));
      EXPECT_EQ(bad[0].kind(), v1::BAD_STEP_KIND_SPIKE);
      EXPECT_GT(bad[0].grad_norm(), bad[0].threshold());
      EXPECT_EQ(result.weights, Without(bad, job, options).weights);
    }
  }
}

TEST_F(BadBatch, EndsRunAfterTooManySkips) {
  for (const bool ahead : {false, true}) {
    v1::JobSpec job = JobOver({20, 60}, kWorlds[2]);
    SkipNonfinite(&job);
    const LocalJobOptions options = Options(job, kInfinity, ahead);
    const std::vector<v1::BadStep> bad = BadStepsOf(Train(job, options));
    ASSERT_THAT(bad, SizeIs(2));
    SkipNonfinite(&job, /*max=*/1);
    const absl::Status status = RunLocalJob(*AcceptedPlan(job), options).status();
    EXPECT_THAT(status.message(), HasSubstr("were already skipped, and train.on_nonfinite.max is 1"));
    ASSERT_TRUE(BadStepOf(status).has_value()) << status;
    EXPECT_EQ(BadStepOf(status)->step(), bad[1].step());
    EXPECT_FALSE(BadStepOf(status)->rewind());
  }
}

TEST_F(BadBatch, EndsRunIfSpecSaysStop) {
  for (const bool ahead : {false, true}) {
    v1::JobSpec job = JobOver({60}, kWorlds[3]);
    SkipSpikes(&job);
    const LocalJobOptions options = Options(job, 0, ahead);
    const std::vector<v1::BadStep> bad = BadStepsOf(Train(job, options));
    ASSERT_THAT(bad, SizeIs(1));
    job.mutable_train()->mutable_on_spike()->clear_max();
    job.mutable_train()->mutable_on_spike()->set_action(v1::STEP_ACTION_STOP);
    const absl::Status status = RunLocalJob(*AcceptedPlan(job), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(status.message(), HasSubstr("a spike: gradient norm "));
    ASSERT_TRUE(BadStepOf(status).has_value()) << status;
    EXPECT_EQ(BadStepOf(status)->SerializeAsString(), bad[0].SerializeAsString());
  }
}

v1::JobSpec Saving(v1::JobSpec job, const std::string& dir) {
  job.mutable_checkpoint()->set_dir(dir);
  job.mutable_checkpoint()->set_every_steps(1);
  job.mutable_checkpoint()->set_keep_last(20);
  return job;
}

v1::JobSpec Loading(v1::JobSpec job, const std::string& dir, int64_t step) {
  job.clear_checkpoint();
  job.mutable_checkpoint()->set_load(CheckpointPath(dir, step));
  return job;
}

// The step after the resumed one is judged by norms from before the checkpoint.
TEST_F(BadBatch, ResumeKeepsNormHistory) {
  for (const World& world : {kWorlds[0], kWorlds[2]}) {
    v1::JobSpec job = JobOver({60}, world);
    SkipSpikes(&job);
    const LocalJobOptions options = Options(job, 0, /*ahead=*/true);
    const TempDir dir;
    const LocalJobResult whole = Train(Saving(job, dir.path()), options);
    const std::vector<v1::BadStep> bad = BadStepsOf(whole);
    ASSERT_THAT(bad, SizeIs(1));
    for (const int64_t after : {bad[0].step() - 1, bad[0].step()}) {
      SCOPED_TRACE(after);
      const LocalJobResult resumed = Train(Loading(job, dir.path(), after));
      EXPECT_EQ(resumed.weights, whole.weights);
      const std::vector<v1::BadStep> again = BadStepsOf(resumed);
      ASSERT_THAT(again, SizeIs(after < bad[0].step() ? 1 : 0));
      for (const v1::BadStep& step : again) EXPECT_EQ(step.SerializeAsString(), bad[0].SerializeAsString());
    }
  }
}

TEST_F(BadBatch, ResumeKeepsSkipCount) {
  v1::JobSpec job = JobOver({20, 60}, kWorlds[1]);
  SkipNonfinite(&job);
  const TempDir dir;
  const std::vector<v1::BadStep> bad = BadStepsOf(Train(Saving(job, dir.path()), Options(job, kInfinity)));
  ASSERT_THAT(bad, SizeIs(2));
  SkipNonfinite(&job, /*max=*/1);
  const auto outcome = [&](int64_t after) {
    return RunLocalJob(*AcceptedPlan(Loading(job, dir.path(), after))).status();
  };
  EXPECT_EQ(BadStepOf(outcome(bad[0].step()))->step(), bad[1].step());
  EXPECT_TRUE(outcome(bad[1].step()).ok());
}

// As the coordinator rewinds a job: the result equals a run that never read those samples.
TEST_F(BadBatch, RewindSkipsItsSamples) {
  for (const World& world : kWorlds) {
    for (const bool ahead : {false, true}) {
      SCOPED_TRACE(world.mesh.name + (ahead ? " ahead" : ""));
      v1::JobSpec job = JobOver({60}, world);
      const TempDir dir;
      v1::JobSpec saving = Saving(job, dir.path());
      saving.mutable_checkpoint()->set_every_steps(2);
      saving.mutable_train()->mutable_on_nonfinite()->set_action(v1::STEP_ACTION_REWIND);
      LocalJobOptions options = Options(job, kInfinity, ahead);
      options.label.job = "job-1";
      const absl::Status ended = RunLocalJob(*AcceptedPlan(saving), options).status();
      ASSERT_TRUE(BadStepOf(ended).has_value()) << ended;
      const v1::BadStep bad = *BadStepOf(ended);
      EXPECT_TRUE(bad.rewind());
      const int64_t back_to = (bad.step() - 1) / 2 * 2;
      ASSERT_GT(back_to, 0);
      options.skipped_samples = {{12 * back_to, bad.end_sample()}};
      const LocalJobResult again = Train(saving, options);
      ASSERT_TRUE(again.restored.has_value());
      EXPECT_EQ(again.restored->step(), back_to);
      const LocalJobResult never = Train(job, options);
      EXPECT_EQ(again.weights, never.weights);
      // Later than the samples: a checkpoint after them needs no list of skipped samples.
      EXPECT_EQ(Train(Loading(job, dir.path(), back_to + 2)).weights, never.weights);
    }
  }
}

}  // namespace
}  // namespace fsdpd
