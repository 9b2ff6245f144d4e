// Trainer: evaluation, and how a rank ends when something fails.
#include "fsdp/engine/trainer.h"

#include <absl/strings/match.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <regex>
#include <thread>

#include "base/clock.h"
#include "base/temp_dir.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

const TestMesh kOptimGradsParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};
const TestMesh kHfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};

v1::JobSpec TwoRankJob(int64_t steps) {
  v1::JobSpec job = Over(TestJob(), kOptimGradsParams, 2, 3);
  job.mutable_train()->set_steps(steps);
  return job;
}

// Evaluation

// Tokens below the vocabulary size of 37; all samples differ, or are all zero with `factor` 0.
std::string TokenFile(const TempDir& dir, int64_t tokens, int64_t factor = 1) {
  const std::string path = dir.File("validation.bin");
  std::ofstream file(path, std::ios::binary);
  for (int64_t i = 0; i < tokens; ++i) {
    file.put(static_cast<char>(factor * i * i % 37));  // u16, little-endian.
    file.put(0);
  }
  return path;
}

v1::JobSpec WithEvaluation(v1::JobSpec job, const std::string& path, int64_t every_steps) {
  v1::TokenFile* file = job.mutable_data()->add_validation();
  file->set_path(path);
  file->set_type(v1::TOKEN_TYPE_U16);
  job.mutable_train()->mutable_evaluation()->set_every_steps(every_steps);
  return job;
}

TEST(Evaluation, MatchesUnshardedForAnySampleCount) {
  const TempDir dir;
  // Eight samples, the last of six targets: rounds of four ranks x one sample, and of one rank x twelve.
  const v1::JobSpec job = WithEvaluation(TestJob(), TokenFile(dir, 63), 2);
  const LocalJobResult alone = Train(job);
  for (const TestMesh& mesh : {TestMesh{"no_shard", v1::STRATEGY_NO_SHARD},
                               TestMesh{"optim", v1::STRATEGY_OPTIM}, kOptimGradsParams, kHfsdp}) {
    for (const bool ahead : {false, true}) {
      SCOPED_TRACE(mesh.name);
      LocalJobOptions options;
      options.run_ahead_on_cpu = ahead;
      const LocalJobResult sharded = Train(Over(job, mesh, 4, 3), options);
      ExpectSame(alone, sharded, 1e-5);
      ASSERT_EQ(sharded.reports[0].size(), 6u);
      for (int s = 0; s < 6; ++s) {
        const v1::StepReport& expected = alone.reports[0][s];
        const v1::StepReport& actual = sharded.reports[3][s];
        ASSERT_EQ(actual.has_evaluation(), s % 2 == 1);
        ASSERT_EQ(expected.has_evaluation(), s % 2 == 1);
        EXPECT_NEAR(actual.evaluation().loss(), expected.evaluation().loss(), 1e-4);
        EXPECT_EQ(actual.evaluation().tokens(), expected.evaluation().tokens());
      }
    }
  }
  EXPECT_EQ(alone.reports[0][1].evaluation().tokens(), 62);
  EXPECT_NE(alone.reports[0][1].evaluation().loss(), alone.reports[0][3].evaluation().loss());
}

TEST(Evaluation, DoesNotChangeTraining) {
  const TempDir dir;
  const v1::JobSpec job = TwoRankJob(5);
  const v1::JobSpec evaluated = WithEvaluation(job, TokenFile(dir, 1000), 1);
  const LocalJobResult result = Train(evaluated);
  ExpectSame(Train(job), result, 0);
  for (const v1::StepReport& report : result.reports[0]) EXPECT_TRUE(report.has_evaluation());
}

// Regression: stamped before it, the time of an evaluation was unaccounted, and the job seemed to make no
// progress.
TEST(Evaluation, EndsBeforeTheReportsTimestamp) {
  const TempDir dir;
  const LocalJobResult result = Train(WithEvaluation(TwoRankJob(3), TokenFile(dir, 1000), 1));
  for (int s = 1; s < 3; ++s) {
    const v1::StepReport& report = result.reports[0][s];
    EXPECT_GE(1e-9 * static_cast<double>(report.unix_nanos() - result.reports[0][s - 1].unix_nanos()),
              report.evaluation().seconds());
  }
}

TEST(Evaluation, RunsAfterTheLastStep) {
  const TempDir dir;
  const LocalJobResult result = Train(WithEvaluation(TwoRankJob(3), TokenFile(dir, 100), 100));
  EXPECT_FALSE(result.reports[0][1].has_evaluation());
  EXPECT_TRUE(result.reports[0][2].has_evaluation());
}

TEST(Evaluation, MatchesTrainingLossOnTheSameTokens) {
  const TempDir dir;
  // For any sharding and shuffling; the learning rate is 0.
  v1::JobSpec job = WithEvaluation(Over(TestJob(), kOptimGradsParams, 2, 3), TokenFile(dir, 500, 0), 1);
  job.mutable_data()->clear_synthetic();
  *job.mutable_data()->add_tokens() = job.data().validation(0);
  job.mutable_optimizer()->mutable_adamw()->set_lr(1e-30);
  job.mutable_train()->set_steps(1);
  const LocalJobResult result = Train(job);
  ASSERT_EQ(result.reports[0].size(), 1u);
  EXPECT_NEAR(result.reports[0][0].evaluation().loss(), result.reports[0][0].loss(), 1e-5);
}

// The flight recorder

// A flight recorder with its reader.
struct Flight {
  Flight() : fd(*MakeFlightRecorder()), page(*FlightRecorder::Map(fd)) {}
  ~Flight() { close(fd); }
  std::string Where() const { return *DescribeLanePositions(fd); }

  const int fd;
  const std::unique_ptr<FlightRecorder> page;
};

TEST(FlightRecorder, NamesLastInstructions) {
  const TempDir dir;
  const Plan plan = *AcceptedPlan(WithEvaluation(TestJob(), TokenFile(dir, 100), 2));
  std::vector<ConnectedMesh> mesh = MakeLocalMesh(plan.spec.mesh);
  const Flight flight;
  const std::atomic<bool> stop{false};
  TrainerOptions options;
  options.plan = &plan;
  options.mesh = std::move(mesh[0]);
  options.stop = &stop;
  options.flight = flight.page.get();
  const auto trainer = Trainer::Make(std::move(options));
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ(flight.Where(), "");
  std::vector<std::string> where;
  const absl::Status status = (*trainer)->Run([&](const v1::StepReport& report) {
    where.push_back(flight.Where());
    EXPECT_EQ(where.back().substr(0, where.back().find(':')),
              absl::StrCat(report.has_evaluation() ? "evaluation after step " : "step ", report.step()));
    EXPECT_FALSE(absl::StrContains(where.back(), " in ")) << where.back();  // Nothing runs between two steps.
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  ASSERT_EQ(where.size(), 6u);
  EXPECT_THAT(where[2], ::testing::MatchesRegex("step 3: compute after Update [a-z]+(\\.[0-9])?"));
  EXPECT_THAT(where[3], HasSubstr("evaluation after step 4: compute after "));
}

// Slow input data

// A group of one rank, whose health the trainer polls while it waits for data.
class Asked : public Communicator {
 public:
  explicit Asked(std::function<void()> on_asked) : on_asked_(std::move(on_asked)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  absl::Status AllGather(void*, int64_t, DType) override { return absl::OkStatus(); }
  absl::Status ReduceScatter(void*, void*, float*, int64_t, DType) override { return absl::OkStatus(); }
  absl::Status AllReduce(float*, int64_t) override { return absl::OkStatus(); }
  absl::Status AllToAll(const void*, void*, int64_t, DType) override { return absl::OkStatus(); }
  absl::Status Broadcast(void*, int64_t, DType, int) override { return absl::OkStatus(); }
  absl::Status Barrier() override { return absl::OkStatus(); }
  void Abort() override {}
  absl::Status Health() const override {
    on_asked_();
    return absl::OkStatus();
  }

 private:
  const std::function<void()> on_asked_;
};

// One rank whose reader thread blocks before step 3 until it is released.
class SlowData : public ::testing::Test {
 protected:
  void Make(std::function<void()> on_asked) {
    plan_ = *AcceptedPlan(TestJob());
    std::vector<ConnectedMesh> mesh = MakeLocalMesh(plan_.spec.mesh);
    mesh[0].Add(Group::kReplicate, Role::kUnit, std::make_unique<Asked>(std::move(on_asked)));
    auto over = std::make_shared<std::promise<void>>();  // Broken when its last owner is destroyed.
    over_ = over->get_future();
    TrainerOptions options;
    options.plan = &plan_;
    options.mesh = std::move(mesh[0]);
    options.stop = &stop_;
    options.clock = &clock_;
    options.before_read = [over = std::move(over), may = may_.get_future().share()](int64_t step) {
      if (step == 3) may.wait();
    };
    auto trainer = Trainer::Make(std::move(options));
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    trainer_ = *std::move(trainer);
  }

  Plan plan_;
  std::atomic<bool> stop_{false};
  FakeClock clock_;
  std::promise<void> may_;
  std::future<void> over_;
  std::unique_ptr<Trainer> trainer_;
};

TEST_F(SlowData, IsReportedWithTheStep) {
  int64_t done = 0;
  Make([&] {
    if (done != 2) return;
    done = 3;  // Once.
    clock_.Advance(absl::Seconds(7));
    may_.set_value();
  });
  std::vector<double> waited;
  const absl::Status status = trainer_->Run([&](const v1::StepReport& report) {
    done = report.step();
    waited.push_back(report.data_wait_seconds());
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(waited, ::testing::ElementsAre(0, 0, 7, 0, 0, 0));
}

// Like a network share that is gone: such a read cannot be interrupted.
TEST_F(SlowData, DoesNotBlockStop) {
  int64_t done = 0;
  Make([&] { stop_ = done == 2; });
  const absl::Status status = trainer_->Run([&](const v1::StepReport& report) {
    done = report.step();
    return absl::OkStatus();
  });
  EXPECT_EQ(status, absl::CancelledError("stopped at step 3"));
  trainer_.reset();
  EXPECT_EQ(over_.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  may_.set_value();
  over_.wait();
}

// Ignored targets

TEST(Trainer, LossIsTheMeanOverCountedTargets) {
  v1::JobSpec job = TestJob();
  job.mutable_data()->set_ignore_index(3);  // One of seven tokens.
  job.mutable_optimizer()->set_clip_norm(0.5);
  const LocalJobResult alone = Train(job);
  ExpectSame(alone, Train(Over(job, kOptimGradsParams, 4, 3)), 1e-5);
  ExpectSame(alone, Train(Over(job, {"no_shard", v1::STRATEGY_NO_SHARD}, 2, 3)), 1e-5);
  EXPECT_NE(alone.reports[0][0].loss(), Train(TestJob()).reports[0][0].loss());
}

// Errors

TEST(Trainer, ReportsATokenOutOfVocabulary) {
  TempDir dir;
  std::ofstream(dir.File("tokens.bin")) << std::string(100, 'x');  // 120 is not below 37.
  auto plan = AcceptedPlan(TwoRankJob(3));
  ASSERT_TRUE(plan.ok());
  plan->spec.data.tokens = {{dir.File("tokens.bin"), 1, TokenType::kU8}};
  EXPECT_THAT(std::string(RunLocalJob(*plan).status().message()),
              HasSubstr("step 1: " + dir.File("tokens.bin")));
}

// Two trainers over one local group, driven by the test, with and without run-ahead.
class TwoRanks : public ::testing::TestWithParam<bool> {
 protected:
  TwoRanks() {
    plan_ = *AcceptedPlan(TwoRankJob(1'000'000));
    std::vector<ConnectedMesh> mesh = MakeLocalMesh(Mesh::DataParallel(1, 2));
    for (const int rank : {0, 1}) {
      TrainerOptions options;
      options.plan = &plan_;
      options.mesh = std::move(mesh[rank]);
      options.stop = &stop_[rank];
      options.flight = flights_[rank].page.get();
      options.run_ahead_on_cpu = GetParam();
      auto trainer = Trainer::Make(std::move(options));
      EXPECT_TRUE(trainer.ok()) << trainer.status();
      trainers_.push_back(*std::move(trainer));
    }
  }

  // Runs both until they end; rank 0 calls `at_third` after its third step.
  void Run(const std::function<absl::Status()>& at_third) {
    std::thread other(
        [&] { status_[1] = trainers_[1]->Run([](const v1::StepReport&) { return absl::OkStatus(); }); });
    status_[0] = trainers_[0]->Run(
        [&](const v1::StepReport& report) { return report.step() == 3 ? at_third() : absl::OkStatus(); });
    other.join();
  }

  Plan plan_;
  Flight flights_[2];
  std::atomic<bool> stop_[2] = {{false}, {false}};
  std::vector<std::unique_ptr<Trainer>> trainers_;
  absl::Status status_[2];
};

TEST_P(TwoRanks, StopWhenAsked) {
  Run([&] {
    stop_[0] = stop_[1] = true;
    return absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsCancelled(status_[0])) << status_[0];
  EXPECT_TRUE(absl::IsCancelled(status_[1])) << status_[1];
}

TEST_P(TwoRanks, FailedRankEndsTheOther) {
  Run([] { return absl::InternalError("disk full"); });
  EXPECT_THAT(status_[0].ToString(), HasSubstr("step 3: disk full"));
  EXPECT_TRUE(absl::IsUnavailable(status_[1])) << status_[1];
  // Names the instruction that could not finish; a step submitted ahead may have been the first to fail.
  EXPECT_THAT(status_[1].ToString(), ::testing::ContainsRegex("step [45]: #"));
}

TEST_P(TwoRanks, FlightRecorderNamesTheBlockedCollective) {
  const std::regex waits("step [45]: .*(gather in Gather|reduce in (Reduce|Norm))");
  Run([&] {
    while (!std::regex_search(flights_[1].Where(), waits)) std::this_thread::yield();
    return absl::InternalError("disk full");
  });
  std::smatch named;
  const std::string error(status_[1].message());
  ASSERT_TRUE(std::regex_search(error, named, std::regex("^(step [45]): #[0-9]+ (.+?) on ([a-z]+)")))
      << error;
  const std::string where = flights_[1].Where();
  EXPECT_THAT(where, HasSubstr(named[1].str() + ": "));
  EXPECT_THAT(where, HasSubstr(absl::StrCat(named[3].str(), " in ", named[2].str())));
}

TEST_P(TwoRanks, AbortUnblocksAWaitingRank) {
  trainers_.pop_back();  // Never runs: its communicators leave the group.
  status_[0] = trainers_[0]->Run([](const v1::StepReport&) { return absl::OkStatus(); });
  EXPECT_TRUE(absl::IsUnavailable(status_[0])) << status_[0];
}

INSTANTIATE_TEST_SUITE_P(RunAhead, TwoRanks, ::testing::Bool());

}  // namespace
}  // namespace fsdpd
