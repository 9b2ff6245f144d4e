// Job dependencies: jobs that wait for others to succeed, and their outcomes.
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Waiting = v1::Job::Waiting;

class ReconcilerAfterTest : public ReconcilerCase {
 protected:
  std::string SubmitAfter(const std::string& id, const std::vector<std::string>& after) {
    v1::Job job;
    job.set_id(id);
    job.set_state(v1::JOB_STATE_QUEUED);
    job.set_revision(1);
    job.set_create_unix_nanos(absl::ToUnixNanos(clock_.Wall()) + ++submits_);
    job.mutable_spec()->mutable_resources()->set_nodes(1);
    job.mutable_spec()->mutable_resources()->set_ranks_per_node(1);
    job.mutable_spec()->mutable_resources()->set_device(v1::DEVICE_CPU);
    for (const std::string& each : after) job.add_after()->set_job(each);
    EXPECT_TRUE(store_->Insert(job).ok());
    board_->Publish(job);
    reconciler_->Submitted(job);
    reconciler_->RunOnce();
    return id;
  }
  void End(const std::string& id, int exit_code, int attempt = 1) {
    Exit("a", id, 0, exit_code, attempt);
    Advance(absl::Seconds(1));  // The failure settles.
    Stopped("a", id, attempt);
  }
  Waiting WaitingOf(const std::string& id) {
    v1::Job job = Job(id);
    board_->AddWaiting(&job);
    return job.waiting();
  }
  absl::StatusOr<v1::Job> Retry(const std::string& id) { return reconciler_->Retry(id, ""); }
  absl::StatusOr<v1::Job> Delete(const std::string& id) { return reconciler_->Delete(id); }
};

TEST_F(ReconcilerAfterTest, StartsAfterAllSucceededWithoutBlockingOthers) {
  Attach("a", 2);
  Submit("first", 1, 1);
  SubmitAfter("second", {"first"});
  SubmitAfter("third", {"first", "second"});
  EXPECT_EQ(StateOf("second"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Job("third").reason(), "waits for the success of first, second");
  EXPECT_EQ(WaitingOf("third").code(), Waiting::CODE_AFTER);
  EXPECT_EQ(WaitingOf("third").queue_position(), 0);
  EXPECT_THAT(WaitingOf("third").jobs(), ElementsAre("first", "second"));
  Submit("other", 1, 1);
  EXPECT_EQ(StateOf("other"), v1::JOB_STATE_STARTING) << "a job that waits for another holds no place";
  End("first", 0);
  EXPECT_EQ(StateOf("second"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("third").reason(), "waits for the success of second");
  End("second", 0);
  EXPECT_EQ(StateOf("third"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerAfterTest, ReportsFailedDependencyAndContinuesAfterItsRetry) {
  Attach("a", 1);
  Submit("first", 1, 1);
  SubmitAfter("second", {"first"});
  End("first", 1);
  EXPECT_EQ(StateOf("first"), v1::JOB_STATE_FAILED);
  EXPECT_EQ(StateOf("second"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("second").reason(), HasSubstr("job first has failed, and this job waits for its success"));
  EXPECT_EQ(WaitingOf("second").code(), Waiting::CODE_AFTER_FAILED);
  EXPECT_EQ(WaitingOf("second").remedy(), "first to be retried (fsdpctl retry)");
  const auto deleted = Delete("first");
  EXPECT_EQ(deleted.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(deleted.status().message(), HasSubstr("job second waits for its success; cancel it first"));
  SubmitAfter("third", {"first"});
  EXPECT_THAT(Delete("first").status().message(),
              HasSubstr("jobs second, third wait for its success; cancel them first"));
  Cancel("third").IgnoreError();
  ASSERT_TRUE(Retry("first").ok());
  reconciler_->RunOnce();
  EXPECT_EQ(WaitingOf("second").code(), Waiting::CODE_AFTER);
  End("first", 0, 2);
  EXPECT_EQ(StateOf("second"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerAfterTest, SuccessCountsAfterDeletionAndRestart) {
  Attach("a", 1);
  Submit("first", 1, 1);
  SubmitAfter("held", {"first"});
  SubmitAfter("second", {"first", "held"});
  Pause("held").IgnoreError();
  End("first", 0);
  ASSERT_TRUE(Delete("first").ok());
  Restart();
  Attach("a", 1);
  Advance(options_.reattach_grace + absl::Seconds(1));
  EXPECT_EQ(StateOf("second"), v1::JOB_STATE_QUEUED);
  ASSERT_TRUE(Resume("held").ok());
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("held"), v1::JOB_STATE_STARTING);
  End("held", 0);
  EXPECT_EQ(StateOf("second"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerAfterTest, FailsDependentsOfForgottenUnsuccessfulJob) {
  Attach("a", 1);
  options_.retention.jobs = 1;  // From the next restart on.
  Submit("first", 1, 1);
  SubmitAfter("second", {"first"});
  Cancel("first").IgnoreError();
  Exit("a", "first", 0, 1);
  Stopped("a", "first");
  EXPECT_EQ(StateOf("first"), v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(Job("second").reason(), HasSubstr("job first was cancelled, and"));
  Submit("newer", 1, 1);
  End("newer", 1);
  Restart();
  Advance(absl::Minutes(1));
  EXPECT_EQ(StateOf("second"), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job("second").reason(), "waited for the success of job first, which was deleted without success");
}

TEST_F(ReconcilerAfterTest, KeepsSuccessUntilAllDependentsKnow) {
  options_.retention.jobs = 0;
  Restart();
  Attach("a", 1);
  Advance(options_.reattach_grace + absl::Seconds(1));
  Submit("first", 1, 1);
  std::vector<std::string> waiting;
  for (int i = 0; i < 40; ++i) waiting.push_back(SubmitAfter("next" + std::to_string(i), {"first"}));
  clock_.Advance(absl::Seconds(11));  // Old jobs are checked in the tick in which it ends.
  for (const auto& [node, outbox] : outboxes_) nodes_->Touch(node, outbox->stream_generation());
  Exit("a", "first", 0, 0);
  Stopped("a", "first");
  Advance(absl::Seconds(30));
  EXPECT_TRUE(absl::IsNotFound(store_->Get("first").status()));
  int up = 0;
  for (const std::string& id : waiting) {
    EXPECT_NE(StateOf(id), v1::JOB_STATE_FAILED) << Job(id).reason();
    up += StateOf(id) == v1::JOB_STATE_STARTING;
  }
  EXPECT_EQ(up, 1);
}

}  // namespace
}  // namespace fsdpd
