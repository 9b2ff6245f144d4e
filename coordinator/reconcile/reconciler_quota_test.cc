// Project quotas: projects are limited to their ranks, and other projects pass their waiting jobs.
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using Waiting = v1::Job::Waiting;

class ReconcilerQuotaTest : public ReconcilerCase {
 protected:
  std::string SubmitOf(const std::string& project, const std::string& id, int ranks) {
    v1::Job job;
    job.set_id(id);
    job.set_project(project);
    job.set_state(v1::JOB_STATE_QUEUED);
    job.set_revision(1);
    job.set_create_unix_nanos(absl::ToUnixNanos(clock_.Wall()) + ++submits_);
    job.mutable_spec()->mutable_resources()->set_nodes(1);
    job.mutable_spec()->mutable_resources()->set_ranks_per_node(ranks);
    job.mutable_spec()->mutable_resources()->set_device(v1::DEVICE_CPU);
    EXPECT_TRUE(store_->Insert(job).ok());
    board_->Publish(job);
    reconciler_->Submitted(job);
    reconciler_->RunOnce();
    return id;
  }
  Waiting::Code CodeOf(const std::string& id) {
    v1::Job job = Job(id);
    board_->AddWaiting(&job);
    return job.waiting().code();
  }
};

TEST_F(ReconcilerQuotaTest, ProjectWaitsForItsQuotaWithoutBlockingOthers) {
  quotas_ = {{"vision", 2}};
  Attach("a", 8);
  SubmitOf("vision", "first", 2);
  SubmitOf("vision", "second", 1);
  SubmitOf("vision", "huge", 3);
  SubmitOf("nlp", "other", 4);
  EXPECT_EQ(StateOf("first"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf("other"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf("second"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(CodeOf("second"), Waiting::CODE_QUOTA);
  EXPECT_EQ(Job("second").reason(), "needs 1 rank and project vision may have 2 at a time; 2 are in use");
  EXPECT_THAT(Job("huge").reason(), HasSubstr("it cannot start under this quota"));
  Exit("a", "first", 0, 0);
  Exit("a", "first", 1, 0);
  EXPECT_EQ(StateOf("second"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerQuotaTest, CountsJobsOfSameTickAndAppliesLargerQuota) {
  quotas_ = {{"vision", 3}};
  for (const char* id : {"one", "two", "three"}) SubmitOf("vision", id, 2);
  Attach("a", 8);
  EXPECT_EQ(StateOf("one"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf("two"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("three").reason(), HasSubstr("waits behind job two of the same project"));
  quotas_ = {{"vision", 5}};
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("two"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf("three"), v1::JOB_STATE_QUEUED);
  quotas_ = {{"vision", 0}};
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("two"), v1::JOB_STATE_STARTING) << "running jobs continue";
}

}  // namespace
}  // namespace fsdpd
