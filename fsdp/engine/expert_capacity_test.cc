// Expert capacity: with expert parallelism, each rank has a limited capacity for tokens. A step that exceeds
// it is applied on no rank and replayed with more capacity: the run matches that of one rank, and nothing is
// lost or counted twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/temp_dir.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

constexpr double kRoundOff = 1e-5;

// Few distinct tokens, so that some experts receive most of them.
v1::JobSpec Uneven(int ranks = 2) {
  v1::JobSpec job = TestJob();
  v1::Llama::Experts* experts = job.mutable_model()->mutable_llama()->mutable_experts();
  experts->set_count(8);
  experts->set_per_token(ranks == 2 ? 2 : 1);
  experts->set_intermediate_size(12);
  job.mutable_data()->mutable_synthetic()->set_vocab(3);
  job.mutable_optimizer()->set_clip_norm(0.5);
  job.mutable_train()->set_steps(8);
  return job;
}

// Two ranks dispatch tokens, and four ranks with top-1 routing dispatch rows.
v1::JobSpec Among(int ranks, const v1::JobSpec& job,
                  v1::Strategy strategy = v1::STRATEGY_OPTIM_GRADS_PARAMS) {
  v1::JobSpec among = Over(job, {"", strategy}, ranks, ranks == 2 ? 2 : 1);
  among.mutable_parallel()->set_expert(ranks);
  return among;
}

// The steps that were replayed, or after which a round of evaluation was.
std::vector<int64_t> ReplayedSteps(const LocalJobResult& result, bool evaluating = false) {
  std::vector<int64_t> steps;
  for (const v1::StepReport& report : result.reports[0]) {
    for (const std::string& warning : report.warnings()) {
      const bool again = warning.find("was replayed") != std::string::npos;
      if (again && (warning.rfind("evaluation: ", 0) == 0) == evaluating) steps.push_back(report.step());
    }
  }
  return steps;
}

LocalJobOptions Ahead(bool ahead) {
  LocalJobOptions options;
  options.run_ahead_on_cpu = ahead;
  return options;
}

TEST(ExpertCapacity, ReplayMatchesOneRank) {
  for (const int ranks : {2, 4}) {
    const LocalJobResult one_rank = Train(Uneven(ranks));
    EXPECT_TRUE(ReplayedSteps(one_rank).empty());
    for (const v1::Strategy strategy :
         {v1::STRATEGY_NO_SHARD, v1::STRATEGY_OPTIM, v1::STRATEGY_OPTIM_GRADS_PARAMS}) {
      for (const bool ahead : {false, true}) {
        const LocalJobResult among = Train(Among(ranks, Uneven(ranks), strategy), Ahead(ahead));
        ExpectSame(one_rank, among, kRoundOff);
        // Until the capacity covers the worst case, which is this multiple of even routing.
        EXPECT_GE(ReplayedSteps(among).size(), 1u);
        EXPECT_GT(among.reports[0].back().routing().capacity_factor(), 1.25);
        EXPECT_LE(ReplayedSteps(among).size(), ranks == 2 ? 2u : 3u);
      }
    }
  }
}

class ExpertCapacityReplay : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ExpertCapacityReplay, ::testing::Values(2, 4));

// A snapshot taken meanwhile belongs to the next step, and must not be saved for this one or the one before.
TEST_P(ExpertCapacityReplay, SavesReplayedSteps) {
  const TempDir dir;
  const LocalJobResult one_rank = Train(Uneven(GetParam()));
  for (const int every : {1, 2}) {
    v1::JobSpec saving = Among(GetParam(), Uneven(GetParam()));
    saving.mutable_checkpoint()->set_dir(dir.File(std::to_string(every)));
    saving.mutable_checkpoint()->set_every_steps(every);
    saving.mutable_checkpoint()->set_keep_last(8);
    const LocalJobResult saved = Train(saving, Ahead(true));
    ExpectSame(one_rank, saved, kRoundOff);
    EXPECT_FALSE(ReplayedSteps(saved).empty());
    for (const char* step : {"2", "4"}) {
      v1::JobSpec job = Uneven(GetParam());
      job.mutable_checkpoint()->set_load(saving.checkpoint().dir() + "/iter_000000" + step);
      ExpectSameRest(one_rank, Train(job), kRoundOff);
    }
  }
}

// An evaluation has no step to replay: its round is repeated.
TEST_P(ExpertCapacityReplay, EvaluationsMatchOneRank) {
  v1::JobSpec job = Uneven(GetParam());
  job.mutable_data()->mutable_synthetic()->clear_vocab();
  job.mutable_model()->mutable_llama()->mutable_experts()->set_per_token(GetParam() == 2 ? 4 : 1);
  job.mutable_train()->mutable_evaluation()->set_every_steps(3);
  const TempDir dir;
  {
    std::ofstream file(dir.File("valid.bin"), std::ios::binary);
    for (int i = 0; i < 24 * 8 + 1; ++i) file << static_cast<char>(7) << '\0';
  }
  v1::TokenFile* tokens = job.mutable_data()->add_validation();
  tokens->set_path(dir.File("valid.bin"));
  tokens->set_type(v1::TOKEN_TYPE_U16);
  const LocalJobResult one_rank = Train(job);
  for (const bool ahead : {false, true}) {
    const LocalJobResult among = Train(Among(GetParam(), job), Ahead(ahead));
    EXPECT_EQ(ExpectSameEvaluations(one_rank, among, kRoundOff), 3);
    // Training with two experts fits; all evaluated tokens are equal.
    if (GetParam() == 4) continue;
    EXPECT_TRUE(ReplayedSteps(among).empty());
    EXPECT_FALSE(ReplayedSteps(among, /*evaluating=*/true).empty());
  }
}

// A replayed step is neither a spike nor nonfinite, and does not move the loss scale or a routing bias.
TEST_P(ExpertCapacityReplay, ReplayIsNotCountedTwice) {
  v1::JobSpec job = Uneven(GetParam());
  job.mutable_train()->mutable_on_spike()->set_grad_norm_factor(1.5);
  job.mutable_train()->mutable_on_spike()->set_window(2);
  job.mutable_train()->mutable_on_spike()->set_action(v1::STEP_ACTION_SKIP);
  v1::Llama::Experts* experts = job.mutable_model()->mutable_llama()->mutable_experts();
  experts->set_scores(v1::Llama::Experts::SCORES_SIGMOID);
  experts->set_selection_bias(true);
  experts->set_bias_update_rate(0.001);
  const LocalJobResult one_rank = Train(job);
  const LocalJobResult among = Train(Among(GetParam(), job), Ahead(true));
  ExpectSame(one_rank, among, kRoundOff);
  EXPECT_FALSE(ReplayedSteps(among).empty());
}

TEST_P(ExpertCapacityReplay, LossScaleGrowsAsWithoutReplay) {
  v1::JobSpec job = Uneven(GetParam());
  job.mutable_precision()->set_compute(v1::DTYPE_FP16);
  job.mutable_precision()->mutable_loss_scale()->set_initial(64);
  job.mutable_precision()->mutable_loss_scale()->set_growth_interval(3);
  const LocalJobResult one_rank = Train(job), among = Train(Among(GetParam(), job), Ahead(true));
  EXPECT_FALSE(ReplayedSteps(among).empty());
  for (size_t s = 0; s < one_rank.reports[0].size(); ++s)
    EXPECT_EQ(among.reports[0][s].loss_scale(), one_rank.reports[0][s].loss_scale()) << s;
  EXPECT_EQ(one_rank.reports[0].back().loss_scale(), 256);
}

// All tokens choose the same experts: as many steps are replayed as without it, and none forever.
TEST_P(ExpertCapacityReplay, NonfiniteStepIsNotAnOverflow) {
  v1::JobSpec job = Among(GetParam(), Uneven(GetParam()));
  job.mutable_optimizer()->mutable_adamw()->set_lr(1e38);  // The weights are NaN after the first step.
  job.mutable_train()->mutable_on_nonfinite()->set_action(v1::STEP_ACTION_SKIP);
  job.mutable_train()->mutable_on_nonfinite()->set_max(20);
  const LocalJobResult result = Train(job, Ahead(true));
  int skipped = 0;
  for (const v1::StepReport& report : result.reports[0]) skipped += report.skipped() ? 1 : 0;
  EXPECT_GE(skipped, 6);
  const std::vector<int64_t> again = ReplayedSteps(result);
  EXPECT_TRUE(std::all_of(again.begin(), again.end(), [](int64_t step) { return step == 1; }));
}

TEST(ExpertCapacity, AllStagesReplay) {
  const LocalJobResult one_rank = Train(Uneven());
  v1::JobSpec job = Over(Uneven(), {"", v1::STRATEGY_NO_SHARD}, 4, 3);
  job.mutable_train()->set_micro_batch(2);
  job.mutable_parallel()->set_expert(2);
  job.mutable_parallel()->set_pipeline(2);
  const LocalJobResult among = Train(job, Ahead(true));
  ExpectSame(one_rank, among, kRoundOff);
  EXPECT_FALSE(ReplayedSteps(among).empty());
}

}  // namespace
}  // namespace fsdpd
