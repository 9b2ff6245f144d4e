#include "coordinator/reconcile/attempt_judge.h"

#include "coordinator/testing/full_disk.h"
#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AttemptJudgeTest : public ReconcileParts {
 protected:
  void SetUp() override {
    Settle();
    Attach("a");
    Attach("b");
  }
  // Rank 0 on node a, rank 1 on node b.
  LiveJob* Start(int attempts = 1) {
    v1::Job job = QueuedJob("j", /*ranks=*/1, /*nodes=*/2);
    job.mutable_spec()->mutable_restart()->set_max_attempts(attempts);
    LiveJob* live = Submit(job);
    EXPECT_TRUE(book_.Launch(live, On({"a", "b"}), /*backfilled=*/false).ok());
    Sent("a"), Sent("b");
    return live;
  }
  // Rank 1 fails. Its peers have time to report earlier failures.
  void Fail(LiveJob* live) {
    Exit(live, "b", 1, 1);
    Advance(absl::Seconds(2));
    judge_.AdvanceAll();
  }
  void EndOthers(LiveJob* live) {
    Exit(live, "a", 0, 143, /*cancelled=*/true);
    for (const char* node : {"a", "b"}) book_.Find(live->job)->TakeStopped(node);
    judge_.AdvanceAll();
  }
  void Ready(LiveJob* live) {
    EXPECT_TRUE(book_.Find(live->job)->TakeReady("a", 0));
    EXPECT_TRUE(book_.Find(live->job)->TakeReady("b", 1));
    judge_.AdvanceAll();
    EXPECT_EQ(live->job.state(), v1::JOB_STATE_RUNNING);
  }
  void Exit(LiveJob* live, const std::string& node, int rank, int code, bool cancelled = false) {
    v1::RankExit exit;
    exit.set_exit_code(code);
    exit.set_cancelled(cancelled);
    if (code != 0) exit.set_error("out of memory");
    ASSERT_TRUE(book_.Find(live->job)->TakeExit(node, rank, exit, presence_.now(), absl::ZeroDuration()));
  }

  AttemptJudge judge_{VerdictOptions(), {&table_, &presence_, &book_, &health_, &clock_}};
};

TEST_F(AttemptJudgeTest, JobRunsOnceAllRanksAreReady) {
  LiveJob* live = Start();
  book_.Find(live->job)->TakeReady("a", 0);
  judge_.AdvanceAll();
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_STARTING);
  book_.Find(live->job)->TakeReady("b", 1);
  judge_.AdvanceAll();
  EXPECT_EQ(Stored("j").state(), v1::JOB_STATE_RUNNING);
}

TEST_F(AttemptJudgeTest, StopsTheOtherRanksOfAFailedAttempt) {
  LiveJob* live = Start();
  Ready(live);
  Fail(live);
  EXPECT_EQ(Stored("j").state(), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(Stored("j").failure().rank(), 1);
  const std::vector<v1::Stop> stops = StopsTo("a");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].grace_ms(), kStopGraceMs);
}

TEST_F(AttemptJudgeTest, StopsThemEvenIfTheFailureCannotBeStored) {
  LiveJob* live = Start();
  Ready(live);
  const FullDisk full;
  Fail(live);
  EXPECT_THAT(StopsTo("a"), SizeIs(1));
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_STOPPING) << "as readers see it";
}

TEST_F(AttemptJudgeTest, FinishIsNotAppliedWhileItCannotBeStored) {
  LiveJob* live = Start();
  Ready(live);
  Exit(live, "a", 0, 0);
  Exit(live, "b", 1, 0);
  {
    const FullDisk full;
    judge_.AdvanceAll();
    EXPECT_EQ(live->job.state(), v1::JOB_STATE_RUNNING);
    EXPECT_THAT(StopsTo("a"), IsEmpty());
  }
  judge_.AdvanceAll();
  EXPECT_EQ(Stored("j").state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(table_.Find("j"), nullptr);
  EXPECT_THAT(StopsTo("a"), SizeIs(1)) << "until the agent confirms that nothing is left";
}

TEST_F(AttemptJudgeTest, QueuesTheNextAttempt) {
  LiveJob* live = Start(/*attempts=*/2);
  Ready(live);
  Fail(live);
  EndOthers(live);
  EXPECT_EQ(Stored("j").state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(live->not_before, presence_.now()) << "the first one is not delayed";
}

TEST_F(AttemptJudgeTest, JobFailsWithTheReasonOfItsLastAttempt) {
  LiveJob* live = Start();
  Ready(live);
  Fail(live);
  EndOthers(live);
  EXPECT_EQ(Stored("j").state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Stored("j").reason(), HasSubstr("out of memory"));
  EXPECT_GT(Stored("j").end_unix_nanos(), 0);
}

}  // namespace
}  // namespace fsdpd
