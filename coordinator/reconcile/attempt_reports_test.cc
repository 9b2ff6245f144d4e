#include "coordinator/reconcile/attempt_reports.h"

#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

class AttemptReportsTest : public ReconcileParts {
 protected:
  void SetUp() override {
    Settle();
    Attach("a");
    Attach("b");
    live_ = Submit(QueuedJob("j"));
    ASSERT_TRUE(book_.Launch(live_, On({"a"}), /*backfilled=*/false).ok());
    Sent("a");
  }
  void Report(v1::RankUpdate update, const std::string& node = "a") {
    if (update.job_id().empty()) update.set_job_id("j");
    if (update.attempt() == 0) update.set_attempt(1);
    reports_.OnUpdate(node, update, presence_.now(), absl::ZeroDuration());
  }
  static v1::RankUpdate Ready() {
    v1::RankUpdate update;
    update.mutable_ready();
    return update;
  }
  static v1::RankUpdate Step(int64_t step) {
    v1::RankUpdate update;
    update.mutable_step()->set_step(step);
    update.mutable_step()->set_step_seconds(1);
    return update;
  }
  static v1::RankUpdate Saved(int64_t step) {
    v1::RankUpdate update;
    update.mutable_saved()->set_step(step);
    return update;
  }

  LiveJob* live_ = nullptr;
  AttemptJudge judge_{VerdictOptions(), {&table_, &presence_, &book_, &health_, &clock_}};
  AttemptReports reports_{{&table_, &presence_, &book_, &judge_, store_.get(), &board_, &clock_, &meters_}};
};

TEST_F(AttemptReportsTest, JobRunsBeforeItsFirstStepIsShown) {
  Report(Ready());
  EXPECT_EQ(live_->job.state(), v1::JOB_STATE_STARTING) << "until the next tick";
  Report(Step(1));
  EXPECT_EQ(Stored("j").state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(live_->job.last_step().step(), 1);
}

TEST_F(AttemptReportsTest, IgnoresOtherNodesRanksAndAttempts) {
  Report(Ready(), "b");
  EXPECT_FALSE(book_.Find(live_->job)->AllReady());
  v1::RankUpdate other = Ready();
  other.set_rank(1);
  Report(other);
  other = Ready();
  other.set_attempt(2);
  Report(other);
  other.set_job_id("k");
  Report(other);
  EXPECT_FALSE(book_.Find(live_->job)->AllReady());
}

TEST_F(AttemptReportsTest, OlderStepsChangeNothing) {
  Report(Ready());
  Report(Step(5));
  Report(Step(4));
  EXPECT_EQ(live_->job.last_step().step(), 5);
}

TEST_F(AttemptReportsTest, CheckpointProvesThatRanksRun) {
  Report(Saved(10));
  EXPECT_EQ(live_->job.state(), v1::JOB_STATE_RUNNING);
  ASSERT_EQ(live_->job.checkpoints_size(), 1);
  EXPECT_EQ(live_->job.checkpoints(0).step(), 10);
}

TEST_F(AttemptReportsTest, RejectsCheckpointOfAnImpossibleStep) {
  for (const int64_t step : {0, 101, -1}) Report(Saved(step));
  EXPECT_EQ(live_->job.state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(live_->job.checkpoints_size(), 0);
}

TEST_F(AttemptReportsTest, LastStepsArriveWithTheExit) {
  Report(Ready());
  Report(Step(5));
  v1::RankUpdate update;
  update.mutable_exit()->mutable_last_report()->set_step(9);
  Report(update);
  EXPECT_EQ(live_->job.last_step().step(), 9);
}

TEST_F(AttemptReportsTest, PositionsAreShownWhileStepsAreMissing) {
  Report(Ready());
  Report(Step(5));
  v1::RankUpdate update;
  update.mutable_position()->set_position("step 6, Gather layer.1");
  Report(update);
  EXPECT_EQ(live_->job.positions_size(), 0) << "steps are not missing";
  live_->job.set_stalled_since_unix_nanos(1);
  Report(update);
  EXPECT_EQ(live_->job.positions_size(), 1);
}

TEST_F(AttemptReportsTest, RejectsComputeTimesOfRanksOnOtherNodes) {
  Report(Ready());
  Report(Step(5));
  v1::ComputeTimes times;
  times.set_job_id("j");
  times.set_attempt(1);
  times.add_ranks()->set_steps(5);
  times.mutable_ranks(0)->set_seconds(1);
  reports_.OnComputeTimes("b", times);
  EXPECT_FALSE(book_.Find(live_->job)->compute.TakeChanged());
  reports_.OnComputeTimes("a", times);
  EXPECT_TRUE(book_.Find(live_->job)->compute.TakeChanged());
}

}  // namespace
}  // namespace fsdpd
