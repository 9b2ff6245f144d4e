// Launch order, and the reasons and places of waiting jobs.
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Waiting = v1::Job::Waiting;

class ReconcilerQueueTest : public ReconcilerCase {
 protected:
  std::string SubmitWith(int priority, const std::string& id, int nodes = 1, int max_attempts = 1) {
    v1::Job job;
    job.set_id(id);
    job.set_state(v1::JOB_STATE_QUEUED);
    job.set_revision(1);
    job.set_create_unix_nanos(absl::ToUnixNanos(clock_.Wall()) + ++submits_);
    job.mutable_spec()->set_priority(priority);
    job.mutable_spec()->mutable_resources()->set_nodes(nodes);
    job.mutable_spec()->mutable_resources()->set_ranks_per_node(1);
    job.mutable_spec()->mutable_resources()->set_device(v1::DEVICE_CPU);
    job.mutable_spec()->mutable_restart()->set_max_attempts(max_attempts);
    EXPECT_TRUE(store_->Insert(job).ok());
    board_->Publish(job);
    reconciler_->Submitted(job);
    reconciler_->RunOnce();
    return id;
  }
  // Adds `count` jobs in this state to the store, and to the reconciler unless they have ended.
  void AddJobs(int count, v1::JobState state, int nodes = 1) {
    for (int i = 0; i < count; ++i) {
      v1::Job job;
      job.set_id(absl::StrCat("job-", ++submits_));
      job.set_state(state);
      job.set_revision(1);
      job.set_create_unix_nanos(absl::ToUnixNanos(clock_.Wall()) + submits_);
      job.mutable_spec()->mutable_resources()->set_nodes(nodes);
      job.mutable_spec()->mutable_resources()->set_ranks_per_node(1);
      job.mutable_spec()->mutable_resources()->set_device(v1::DEVICE_CPU);
      ASSERT_TRUE(store_->Insert(job).ok());
      if (state == v1::JOB_STATE_SUCCEEDED) continue;
      board_->Publish(job);
      reconciler_->Submitted(job);
    }
  }
  int64_t VisitedByTicks(int ticks) {
    const int64_t before = reconciler_->visited_jobs();
    for (int i = 0; i < ticks; ++i) reconciler_->RunOnce();
    return reconciler_->visited_jobs() - before;
  }
  Waiting WaitingOf(const std::string& id) {
    v1::Job job = Job(id);
    board_->AddWaiting(&job);
    return job.waiting();
  }
  // Ends the job on node "a", which has one slot, and returns the job that is launched there next.
  std::string NextAfter(const std::string& id) {
    Exit("a", id, 0, 0);
    Stopped("a", id);
    const std::vector<v1::Launch> launches = LaunchesSent("a");
    return launches.empty() ? "" : launches.back().job_id();
  }
};

TEST_F(ReconcilerQueueTest, OrdersByPriorityThenSubmission) {
  Attach("a", 1);
  SubmitWith(0, "first");
  SubmitWith(0, "plain");
  SubmitWith(-1, "patient");
  SubmitWith(5, "urgent");
  SubmitWith(5, "urgent-too");
  Restart();  // The order follows the stored jobs.
  Attach("a", 1, {{"first", 1}});
  Advance(options_.reattach_grace + absl::Seconds(1));
  Sent("a");
  EXPECT_EQ(NextAfter("first"), "urgent");
  EXPECT_EQ(NextAfter("urgent"), "urgent-too");
  EXPECT_EQ(NextAfter("urgent-too"), "plain");
  EXPECT_EQ(NextAfter("plain"), "patient");
}

TEST_F(ReconcilerQueueTest, EveryWaitingJobHasReasonAndPlace) {
  Attach("a", 1);
  SubmitWith(0, "first");
  SubmitWith(0, "next");
  SubmitWith(0, "last");
  EXPECT_EQ(WaitingOf("first").code(), Waiting::CODE_UNSPECIFIED) << "it does not wait";
  EXPECT_EQ(WaitingOf("next").code(), Waiting::CODE_SLOTS);
  EXPECT_EQ(WaitingOf("next").queue_position(), 1);
  EXPECT_THAT(WaitingOf("next").jobs(), ElementsAre("first"));
  EXPECT_EQ(WaitingOf("last").code(), Waiting::CODE_QUEUE_ORDER);
  EXPECT_EQ(WaitingOf("last").queue_position(), 2);
  EXPECT_THAT(WaitingOf("last").jobs(), ElementsAre("next"));
  SubmitWith(1, "urgent");
  EXPECT_EQ(WaitingOf("urgent").queue_position(), 1);
  EXPECT_EQ(WaitingOf("last").queue_position(), 3);
  EXPECT_THAT(Job("next").reason(), HasSubstr("waits behind job urgent, which has priority 1"));
  EXPECT_THAT(Job("last").reason(), HasSubstr("waits behind job urgent, which has priority 1"));
}

// Regression: the queue was copied, and quotas were counted over all jobs, ten times per second.
TEST_F(ReconcilerQueueTest, IdleTickDoesNotVisitStoredJobs) {
  Attach("a", 1);
  quotas_ = {{"p", 10}};
  AddJobs(500, v1::JOB_STATE_QUEUED);
  VisitedByTicks(10);  // One is launched, and all others get a reason.
  const int64_t visited = VisitedByTicks(5);
  EXPECT_LT(visited, 5 * 10);
  AddJobs(2000, v1::JOB_STATE_SUCCEEDED);
  AddJobs(1000, v1::JOB_STATE_QUEUED);
  VisitedByTicks(10);
  EXPECT_EQ(VisitedByTicks(5), visited);
}

TEST_F(ReconcilerQueueTest, FreedSlotTriggersVisitOfLongQueue) {
  Attach("a", 1);
  AddJobs(500, v1::JOB_STATE_QUEUED);
  VisitedByTicks(10);
  ASSERT_EQ(StateOf("job-1"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(NextAfter("job-1"), "job-2");
  VisitedByTicks(10);
  Attach("b", 1);
  EXPECT_EQ(StateOf("job-3"), v1::JOB_STATE_STARTING);
  VisitedByTicks(10);
  SubmitWith(5, "urgent");
  EXPECT_EQ(WaitingOf("urgent").queue_position(), 1);
  EXPECT_EQ(WaitingOf("job-500").queue_position(), 498);
}

TEST_F(ReconcilerQueueTest, RetryDelayEndsOnTimeBehindLongQueue) {
  Attach("a", 1);
  Advance(absl::Seconds(20));  // All agents have had time to reconnect.
  AddJobs(500, v1::JOB_STATE_QUEUED, /*nodes=*/2);
  SubmitWith(0, "fails", 1, /*max_attempts=*/3);
  ASSERT_EQ(StateOf("fails"), v1::JOB_STATE_STARTING);
  Exit("a", "fails", 0, 1);
  Advance(absl::Milliseconds(400));
  Stopped("a", "fails");
  ASSERT_EQ(StateOf("fails"), v1::JOB_STATE_QUEUED);
  VisitedByTicks(10);
  EXPECT_LT(VisitedByTicks(5), 5 * 10);
  const absl::Time until = absl::FromUnixNanos(WaitingOf("fails").not_before_unix_nanos());
  Advance(until - clock_.Wall() + absl::Milliseconds(100));
  EXPECT_EQ(StateOf("fails"), v1::JOB_STATE_STARTING);
}

// Regression: each launch gave each job behind it a new reason, which was stored and filled the event log.
TEST_F(ReconcilerQueueTest, LaunchChangesNoReasonFarDownQueue) {
  Attach("a", 1);
  AddJobs(500, v1::JOB_STATE_QUEUED);
  VisitedByTicks(10);
  const v1::Job before = Job("job-400");
  EXPECT_THAT(before.reason(), HasSubstr("waits behind other jobs in the queue"));
  EXPECT_THAT(WaitingOf("job-400").jobs(), ElementsAre("job-2"));
  EXPECT_EQ(NextAfter("job-1"), "job-2");
  VisitedByTicks(10);
  EXPECT_EQ(Job("job-400").revision(), before.revision());
  EXPECT_THAT(WaitingOf("job-400").jobs(), ElementsAre("job-3"));
}

// Regression: 200 were stored per tick, each after a visit of the whole queue, so 50,000 jobs took minutes.
TEST_F(ReconcilerQueueTest, StoresReasonsOfLongQueueInBoundedTicks) {
  Attach("a", 1);
  AddJobs(6400, v1::JOB_STATE_QUEUED);
  VisitedByTicks(20);
  EXPECT_THAT(Job("job-6400").reason(), HasSubstr("waits behind other jobs in the queue"));
}

TEST_F(ReconcilerQueueTest, ImpossibleJobBlocksNobody) {
  Attach("a", 1);
  Advance(absl::Seconds(20));  // All agents have had time to reconnect.
  SubmitWith(9, "large", /*nodes=*/2);
  EXPECT_EQ(WaitingOf("large").code(), Waiting::CODE_NODES);
  EXPECT_EQ(WaitingOf("large").queue_position(), 0);
  SubmitWith(0, "small");
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerQueueTest, LowerPriorityDoesNotPassReservation) {
  Attach("a", 1);
  Attach("b", 1);
  SubmitWith(0, "one");
  SubmitWith(1, "two", /*nodes=*/2);
  SubmitWith(0, "small");
  EXPECT_EQ(StateOf("one"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_QUEUED)
      << "they would delay the large job forever, one after the other";
  EXPECT_EQ(WaitingOf("small").code(), Waiting::CODE_QUEUE_ORDER);
}

TEST_F(ReconcilerQueueTest, DelayedAndPausedJobsHoldNoPlace) {
  Attach("a", 1);
  SubmitWith(0, "fails", 1, /*max_attempts=*/3);
  Exit("a", "fails", 0, 1);
  Advance(absl::Milliseconds(400));
  Stopped("a", "fails");
  EXPECT_EQ(WaitingOf("fails").code(), Waiting::CODE_BACKOFF);
  EXPECT_GT(WaitingOf("fails").not_before_unix_nanos(), absl::ToUnixNanos(clock_.Wall()));
  SubmitWith(0, "next");
  EXPECT_EQ(StateOf("next"), v1::JOB_STATE_STARTING);
  Pause("fails").IgnoreError();
  reconciler_->RunOnce();
  EXPECT_EQ(WaitingOf("fails").code(), Waiting::CODE_PAUSED);
  EXPECT_EQ(WaitingOf("fails").remedy(), "fsdpctl resume fails");
}

}  // namespace
}  // namespace fsdpd
