#include "coordinator/reconcile/job_queue.h"

#include "coordinator/testing/full_disk.h"
#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class JobQueueTest : public ReconcileParts {
 protected:
  void SetUp() override {
    Settle();
    Attach("a", 2);
  }
  LiveJob* Queue(const std::string& id, int ranks, int priority = 0, bool preemptible = false) {
    v1::Job job = QueuedJob(id, ranks);
    job.mutable_spec()->set_priority(priority);
    job.set_preemptible(preemptible);
    return Submit(job);
  }
  void Place() { queue_.PlaceJobs(); }
  v1::Job::Waiting WaitingOf(const LiveJob& live) {
    v1::Job job = live.job;
    board_.AddWaiting(&job);
    return job.waiting();
  }

  RanksByProject quotas_;
  JobDependencies dependencies_{&table_, store_.get()};
  WorldChooser worlds_{&table_, &presence_, [](const v1::JobSpec&, int64_t) { return Plan(); }};
  JobQueue queue_{{&table_, &presence_, &book_, &preflights_, &slots_, &worlds_, &dependencies_, &board_,
                   &clock_, [this] { return quotas_; }}};
};

bool IsQueued(const LiveJob* live) { return live->job.state() == v1::JOB_STATE_QUEUED; }

TEST_F(JobQueueTest, LaunchesByPriorityThenSubmission) {
  LiveJob* first = Queue("first", 1);
  LiveJob* second = Queue("second", 1);
  LiveJob* urgent = Queue("urgent", 1, /*priority=*/1);
  Place();
  EXPECT_FALSE(IsQueued(urgent));
  EXPECT_FALSE(IsQueued(first));
  EXPECT_TRUE(IsQueued(second));
  EXPECT_EQ(WaitingOf(*second).queue_position(), 1);
}

TEST_F(JobQueueTest, SlotsOfAWaitingJobAreOnlyBackfilled) {
  Run(QueuedJob("runs"), "a");
  LiveJob* head = Queue("head", 2);
  LiveJob* behind = Queue("behind", 1);
  LiveJob* backfill = Queue("backfill", 1, /*priority=*/0, /*preemptible=*/true);
  Place();
  EXPECT_TRUE(IsQueued(head));
  EXPECT_TRUE(IsQueued(behind));
  EXPECT_THAT(behind->job.reason(), HasSubstr("head"));
  EXPECT_FALSE(IsQueued(backfill));
  EXPECT_TRUE(backfill->job.backfilled());
}

TEST_F(JobQueueTest, ImpossibleJobHoldsUpNoOther) {
  LiveJob* large = Queue("large", 3);
  LiveJob* behind = Queue("behind", 2);
  Place();
  EXPECT_THAT(large->job.reason(), HasSubstr("jobs behind it are placed first"));
  EXPECT_FALSE(IsQueued(behind));
}

TEST_F(JobQueueTest, JobThatWaitsForItsDelayHoldsNoPlace) {
  LiveJob* delayed = Queue("delayed", 2);
  delayed->not_before = clock_.Now() + absl::Seconds(10);
  LiveJob* behind = Queue("behind", 2);
  Place();
  EXPECT_FALSE(IsQueued(behind));
  EXPECT_EQ(WaitingOf(*delayed).not_before_unix_nanos(),
            absl::ToUnixNanos(clock_.Wall() + absl::Seconds(10)));
}

TEST_F(JobQueueTest, QuotaHoldsUpItsProjectOnly) {
  quotas_["p"] = 1;
  v1::Job job = QueuedJob("over", 2);
  job.set_project("p");
  LiveJob* over = Submit(job);
  LiveJob* other = Queue("other", 2);
  Place();
  EXPECT_THAT(over->job.reason(), HasSubstr("project p"));
  EXPECT_FALSE(IsQueued(other));
}

TEST_F(JobQueueTest, PreemptsLowerPriorityWithASave) {
  v1::Job job = QueuedJob("runs");
  job.set_preemptible(true);
  LiveJob* runs = Run(job, "a");
  LiveJob* head = Queue("head", 2, /*priority=*/1);
  Place();
  EXPECT_EQ(runs->job.state(), v1::JOB_STATE_PAUSING);
  EXPECT_EQ(Stored("runs").pause().preempted_by(), "head");
  EXPECT_TRUE(StopsTo("a").at(0).save());
  EXPECT_THAT(head->job.reason(), HasSubstr("runs saves and leaves for it"));
}

TEST_F(JobQueueTest, EqualPriorityIsNotPreempted) {
  v1::Job job = QueuedJob("runs");
  job.set_preemptible(true);
  LiveJob* runs = Run(job, "a");
  Queue("head", 2);
  Place();
  EXPECT_EQ(runs->job.state(), v1::JOB_STATE_RUNNING);
}

TEST_F(JobQueueTest, LaunchThatCannotBeStoredIsRetried) {
  LiveJob* live = Queue("j", 1);
  {
    const FullDisk full;
    Place();
  }
  EXPECT_TRUE(IsQueued(live));
  EXPECT_EQ(WaitingOf(*live).code(), v1::Job::Waiting::CODE_DISK);
  Place();
  EXPECT_FALSE(IsQueued(live));
}

TEST_F(JobQueueTest, LongQueueIsVisitedAgainOnlyAfterAChange) {
  Run(QueuedJob("runs"), "a");
  for (int i = 0; i < 257; ++i) Queue(absl::StrCat("j", i), 2);
  for (int i = 0; i < 3; ++i) Place();  // Stores 200 reasons per call.
  const int64_t visited = queue_.visited();
  Place();
  EXPECT_EQ(queue_.visited(), visited);
  quotas_["p"] = 1;
  Place();
  EXPECT_EQ(queue_.visited(), visited + 257);
  Advance(absl::Seconds(5));
  Place();
  EXPECT_EQ(queue_.visited(), visited + 2 * 257);
}

}  // namespace
}  // namespace fsdpd
