#include "coordinator/reconcile/ended_jobs.h"

#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class EndedJobsTest : public ReconcileParts {
 protected:
  void AddEnded(const std::string& id) {
    v1::Job job = QueuedJob(id);
    job.set_state(v1::JOB_STATE_FAILED);
    job.set_end_unix_nanos(absl::ToUnixNanos(clock_.Wall()) + ++ends_);
    ASSERT_TRUE(store_->Insert(job).ok());
  }
  std::vector<std::string> FilesDeletedOn(const std::string& node) {
    std::vector<std::string> jobs;
    for (const v1::CoordinatorMessage& message : Sent(node)) {
      if (message.has_delete_job_files()) jobs.push_back(message.delete_job_files().job_id());
    }
    return jobs;
  }

  EndedJobs ended_{{/*jobs=*/1, absl::InfiniteDuration()},
                   {&table_, &presence_, &nodes_, store_.get(), &clock_}};
  int ends_ = 0;
};

TEST_F(EndedJobsTest, OldJobsAreDeletedWithTheirFilesOnAllNodes) {
  Attach("a");
  Attach("b");
  AddEnded("old");
  AddEnded("new");
  Advance(absl::Seconds(10));
  ended_.ForgetOld();
  EXPECT_TRUE(absl::IsNotFound(store_->Get("old").status()));
  EXPECT_TRUE(store_->Get("new").ok());
  ended_.SendForgets();
  EXPECT_THAT(FilesDeletedOn("a"), ElementsAre("old"));
  EXPECT_THAT(FilesDeletedOn("b"), ElementsAre("old"));
  ended_.SendForgets();
  EXPECT_THAT(FilesDeletedOn("a"), IsEmpty());
}

TEST_F(EndedJobsTest, NothingIsDeletedBeforeAgentsCouldReconnect) {
  AddEnded("old");
  AddEnded("new");
  Advance(absl::Seconds(9));
  ended_.ForgetOld();
  EXPECT_TRUE(store_->Get("old").ok());
}

TEST_F(EndedJobsTest, FilesOfADeletedJobAreDeletedAtOnce) {
  Attach("a");
  Attach("gone");
  Settle();
  Lose("gone");
  ended_.Forget("j");
  ended_.SendForgets();
  EXPECT_THAT(FilesDeletedOn("a"), ElementsAre("j"));
}

TEST_F(EndedJobsTest, NextJobsWaitUntilFilesOfTheLastAreDeleted) {
  AddEnded("old");
  AddEnded("new");
  ended_.Forget("j");
  Advance(absl::Seconds(10));
  ended_.ForgetOld();
  EXPECT_TRUE(store_->Get("old").ok());
  ended_.SendForgets();
  ended_.ForgetOld();
  EXPECT_TRUE(absl::IsNotFound(store_->Get("old").status()));
}

}  // namespace
}  // namespace fsdpd
