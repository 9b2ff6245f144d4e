// Jobs after their end: retried, deleted, and forgotten in time.
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReconcilerEndedTest : public ReconcilerCase {
 protected:
  absl::StatusOr<v1::Job> Retry(const std::string& id) { return reconciler_->Retry(id, ""); }
  absl::StatusOr<v1::Job> Delete(const std::string& id) { return reconciler_->Delete(id); }
  void Fail(int attempt) {
    Exit("a", "j", 0, 1, attempt);
    Advance(absl::Milliseconds(1));
    Stopped("a", "j", attempt);
  }
  std::vector<std::string> Forgotten(const std::string& node) {
    std::vector<std::string> jobs;
    for (const auto& message : Sent(node)) {
      if (message.has_delete_job_files()) jobs.push_back(message.delete_job_files().job_id());
    }
    return jobs;
  }
};

// Regression: one tick sent a message for each forgotten job to each node, 0.3 s for 256 jobs and 2,000
// nodes.
TEST_F(ReconcilerEndedTest, SpreadsForgettingOverTicks) {
  options_.retention.jobs = 0;
  Restart();
  constexpr int kNodes = 64, kJobs = 200;
  for (int node = 0; node < kNodes; ++node) Attach(absl::StrCat("n", node), 1);
  for (int number = 0; number < kJobs; ++number) {
    v1::Job job;
    job.set_id(absl::StrCat("ended-", number));
    job.set_state(v1::JOB_STATE_FAILED);
    job.set_end_unix_nanos(1);
    ASSERT_TRUE(store_->Insert(job).ok());
  }
  clock_.Advance(absl::Seconds(10));
  for (const auto& [node, outbox] : outboxes_) nodes_->Touch(node, outbox->stream_generation());
  reconciler_->RunOnce();
  EXPECT_EQ(Forgotten("n0").size(), 8192u / kNodes);
  reconciler_->RunOnce();
  EXPECT_EQ(Forgotten("n0").size(), kJobs - 8192u / kNodes);
}

TEST_F(ReconcilerEndedTest, RetryContinuesFailedJobWithAllAttempts) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/2);
  v1::RankUpdate saved = Update("j", 0);
  saved.mutable_saved()->set_step(5);
  reconciler_->OnReport("a", saved, 0);
  Fail(1);
  Advance(absl::Seconds(5));
  Fail(2);
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  Sent("a");
  ASSERT_TRUE(Retry("j").ok());
  reconciler_->RunOnce();
  const std::vector<v1::Launch> launches = LaunchesSent("a");
  ASSERT_EQ(launches.size(), 1U);
  EXPECT_EQ(launches[0].attempt(), 3);
  EXPECT_EQ(launches[0].checkpoint_step(), 5);
  EXPECT_EQ(Job("j").end_unix_nanos(), 0);
  Fail(3);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED) << "one attempt of two";
  Advance(absl::Seconds(5));
  Fail(4);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job("j").failed_attempts_size(), 4) << "including the attempts before the retry";
}

TEST_F(ReconcilerEndedTest, RetrySurvivesRestart) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Fail(1);
  Detach("a");
  outboxes_.erase("a");
  ASSERT_TRUE(Retry("j").ok());
  Restart();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Attach("a", 1);
  Advance(options_.reattach_grace + absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerEndedTest, RetryRejectsLiveAndSucceededJobs) {
  Attach("a", 1);
  Submit("j", 1, 1);
  EXPECT_EQ(Retry("j")->state(), v1::JOB_STATE_STARTING);
  Cancel("j").IgnoreError();
  EXPECT_EQ(Retry("j").status().code(), absl::StatusCode::kFailedPrecondition);
  Exit("a", "j", 0, 143);
  Stopped("a", "j");
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Retry("j")->state(), v1::JOB_STATE_QUEUED);
  EXPECT_FALSE(Job("j").has_cancellation());
  reconciler_->RunOnce();
  Exit("a", "j", 0, 0, 2);
  Stopped("a", "j", 2);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(Retry("j").status().message(), HasSubstr("submit --from"));
  EXPECT_EQ(Retry("nobody").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ReconcilerEndedTest, RetryWaitsForDirectoryTakenByAnotherJob) {
  Attach("a", 1);
  Submit("j", 1, 1, 1, "/runs/7");
  Fail(1);
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  Submit("k", 1, 1, 1, "/runs/7/");
  const absl::Status live = Retry("j").status();
  EXPECT_EQ(live.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(live.message(), HasSubstr("/runs/7 belongs to job k, which is starting"));
  v1::RankUpdate saved = Update("k", 0);
  saved.mutable_saved()->set_step(5);
  reconciler_->OnReport("a", saved, 0);
  Exit("a", "k", 0, 0);
  Stopped("a", "k");
  ASSERT_EQ(StateOf("k"), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(Retry("j").status().message(), HasSubstr("job k has taken its checkpoint.dir /runs/7"));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  ASSERT_TRUE(Delete("k").ok());
  EXPECT_TRUE(Retry("j").ok());
}

TEST_F(ReconcilerEndedTest, DeletesEndedJobWithItsLogs) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 1, 1);
  EXPECT_EQ(Delete("j").status().code(), absl::StatusCode::kFailedPrecondition);
  Exit("a", "j", 0, 0);
  Stopped("a", "j");
  EXPECT_THAT(Forgotten("a"), IsEmpty());
  ASSERT_TRUE(Delete("j").ok());
  EXPECT_EQ(store_->Get("j").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Forgotten("a"), ElementsAre("j"));
  EXPECT_THAT(Forgotten("b"), ElementsAre("j"));
  EXPECT_EQ(Delete("j").status().code(), absl::StatusCode::kNotFound);
}

// Regression: the response did not name the node, and its ranks were stopped as after a restore from a
// backup.
TEST_F(ReconcilerEndedTest, DeletedJobNamesLostNodeAndStopsItsRanksLater) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Ready("a", "j", 0);
  Detach("a");
  outboxes_.clear();
  Advance(absl::Seconds(20));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  std::vector<std::string> unconfirmed;
  ASSERT_TRUE(reconciler_->Delete("j", "", &unconfirmed).ok());
  EXPECT_THAT(unconfirmed, ElementsAre("a"));
  EXPECT_EQ(store_->events().Read({})->events.back().message(),
            "deleted: its ranks may still run on lost node a");
  Restart();
  Attach("a", 1, {{"j", 1}, {"newer", 1}});
  std::map<std::string, v1::Stop> stops;
  for (const v1::Stop& stop : StopsSent("a")) stops[stop.job_id()] = stop;
  EXPECT_EQ(stops["j"].reason(), "the job was deleted");
  EXPECT_FALSE(stops["j"].save());
  EXPECT_EQ(stops["newer"].reason(),
            "unknown job: it has ended and its record has expired, or the coordinator's state is older than "
            "the job");
  EXPECT_TRUE(stops["newer"].save());
}

// Regression: the stop's reason was that the coordinator's state is older than the attempt, as after a
// restore.
TEST_F(ReconcilerEndedTest, StopsRanksOfForgottenJobAtReconnect) {
  options_.retention.jobs = 0;
  Restart();
  Attach("a", 1);
  Submit("j", 1, 1);
  Ready("a", "j", 0);
  Detach("a");
  outboxes_.clear();
  Advance(absl::Seconds(40));
  ASSERT_TRUE(absl::IsNotFound(store_->Get("j").status())) << "it failed and was forgotten";
  Attach("a", 1, {{"j", 1}});
  const std::vector<v1::Stop> stops = StopsSent("a");
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].reason(),
            "the job has ended and its record has expired (--keep-ended-jobs, --keep-ended-days)");
  EXPECT_FALSE(stops[0].save());
}

TEST_F(ReconcilerEndedTest, RejectsRetryOfPausedJob) {
  Submit("j", 1, 1);
  Pause("j").IgnoreError();
  const absl::Status refused = Retry("j").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("fsdpctl resume"));
}

TEST_F(ReconcilerEndedTest, RejectsDeletionOfPausedJob) {
  Submit("j", 1, 1);
  Pause("j").IgnoreError();
  EXPECT_EQ(Delete("j").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
}

TEST_F(ReconcilerEndedTest, ForgetsOnlyOldEndedJobs) {
  options_.retention.jobs = 2;
  Restart();
  Attach("a", 1);
  for (const char* id : {"one", "two", "three"}) {
    Submit(id, 1, 1);
    Exit("a", id, 0, 0);
    Stopped("a", id);
    Advance(absl::Seconds(1));
  }
  Submit("runs", 1, 1);
  Sent("a");
  Advance(absl::Seconds(11));
  EXPECT_THAT(Forgotten("a"), ElementsAre("one"));
  EXPECT_FALSE(store_->Get("one").ok());
  EXPECT_TRUE(store_->Get("two").ok());
  EXPECT_TRUE(store_->Get("runs").ok());
}

}  // namespace
}  // namespace fsdpd
