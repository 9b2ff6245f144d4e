#include "coordinator/reconcile/job_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "coordinator/store/sqlite_store.h"
#include "coordinator/testing/full_disk.h"
#include "coordinator/testing/memory_dir.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JobTableTest : public ::testing::Test {
 protected:
  LiveJob* Submit(const std::string& id, int priority = 0) {
    v1::Job job;
    job.set_id(id);
    job.set_state(v1::JOB_STATE_QUEUED);
    job.set_revision(1);
    job.mutable_spec()->set_priority(priority);
    EXPECT_TRUE(store_->Insert(job).ok());
    board_.Publish(job);
    return &table_.Add(job);
  }
  v1::Job Stored(const std::string& id) { return store_->Get(id).value(); }

  MemoryDir dir_;
  FakeClock clock_;
  std::unique_ptr<SqliteStore> store_ = SqliteStore::Open(dir_.path()).value();
  JobBoard board_;
  bool leads_ = true;
  JobTable table_{{store_.get(), &board_, &clock_, nullptr, [this] { return leads_; }, absl::Seconds(10)}};
};

TEST_F(JobTableTest, QueueIsOrderedByPriorityAndSubmission) {
  Submit("b");
  Submit("a");
  Submit("urgent", 1);
  std::vector<std::string> ids;
  for (const QueuePlace& place : table_.queue()) ids.push_back(std::get<std::string>(place));
  EXPECT_THAT(ids, ElementsAre("urgent", "a", "b"));
}

TEST_F(JobTableTest, CommitStoresAndShowsTheChange) {
  LiveJob* live = Submit("j");
  ASSERT_TRUE(table_.Commit(live, JobEvent::kLaunch, "placed").ok());
  EXPECT_EQ(Stored("j").state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(board_.Get("j")->reason(), "placed");
  EXPECT_THAT(table_.queue(), IsEmpty());
  EXPECT_THAT(table_.In(JobIndex::View::kLaunched), ElementsAre("j"));
}

TEST_F(JobTableTest, CommitThatCannotBeStoredChangesNothing) {
  LiveJob* live = Submit("j");
  const FullDisk full;
  EXPECT_FALSE(table_.Commit(live, JobEvent::kLaunch, "placed").ok());
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(board_.Get("j")->state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(table_.queue().size(), 1u);
}

TEST_F(JobTableTest, UnstoredChangeIsShownWithItsErrorUntilItIsStored) {
  LiveJob* live = Submit("j");
  ASSERT_TRUE(table_.Commit(live, JobEvent::kLaunch, "placed").ok());
  ASSERT_TRUE(table_.CommitUnstored(live, JobEvent::kFail, "failed", absl::UnavailableError("full")).ok());
  EXPECT_THAT(board_.Get("j")->reason(), HasSubstr("not on disk yet: full"));
  EXPECT_EQ(Stored("j").state(), v1::JOB_STATE_STARTING);
  table_.SaveRest(clock_.Now());
  EXPECT_EQ(board_.Get("j")->reason(), "failed");
  EXPECT_EQ(Stored("j").state(), v1::JOB_STATE_STOPPING);
}

TEST_F(JobTableTest, WithoutLeadershipNothingIsChangedUnstored) {
  LiveJob* live = Submit("j");
  leads_ = false;
  EXPECT_FALSE(table_.CommitUnstored(live, JobEvent::kLaunch, "placed", FencedError()).ok());
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_QUEUED);
}

TEST_F(JobTableTest, StepsAreStoredAtTheirInterval) {
  LiveJob* live = Submit("j");
  ASSERT_TRUE(table_.Commit(live, JobEvent::kLaunch, "placed").ok());
  const auto step = [&](int64_t number) {
    live->job.mutable_last_step()->set_step(number);
    live->progressed = true;
    table_.SaveRest(clock_.Now());
    return Stored("j").last_step().step();
  };
  EXPECT_EQ(step(1), 1);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(step(2), 1);
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(step(3), 3);
  live->job.mutable_last_step()->set_step(4);
  live->progressed = true;
  table_.SaveRest(clock_.Now(), /*all=*/true);
  EXPECT_EQ(Stored("j").last_step().step(), 4);
}

TEST_F(JobTableTest, ForgetsOnlyEndedJobs) {
  LiveJob* live = Submit("j");
  table_.ForgetIfEnded("j");
  EXPECT_FALSE(table_.HasEnded("j"));
  ASSERT_TRUE(table_.GiveUp(live, "no node is large enough").ok());
  EXPECT_EQ(Stored("j").failure().cause(), v1::FAILURE_CAUSE_CONFIGURATION);
  table_.ForgetIfEnded("j");
  EXPECT_TRUE(table_.HasEnded("j"));
  EXPECT_THAT(table_.queue(), IsEmpty());
}

}  // namespace
}  // namespace fsdpd
