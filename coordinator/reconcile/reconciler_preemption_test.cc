// Preemption: jobs save and leave for one of higher priority, and resume by themselves.
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ReconcilerPreemptionTest : public ReconcilerCase {
 protected:
  struct Wants {
    int priority = 0;
    bool preemptible = true;
    bool saves = true;
  };
  std::string SubmitWith(const std::string& id, const Wants& wants, int ranks = 1) {
    v1::Job job;
    job.set_id(id);
    job.set_state(v1::JOB_STATE_QUEUED);
    job.set_revision(1);
    job.set_create_unix_nanos(absl::ToUnixNanos(clock_.Wall()) + ++submits_);
    job.mutable_spec()->set_priority(wants.priority);
    job.mutable_spec()->mutable_train()->set_steps(100);
    job.mutable_spec()->mutable_resources()->set_nodes(1);
    job.mutable_spec()->mutable_resources()->set_ranks_per_node(ranks);
    job.mutable_spec()->mutable_resources()->set_device(v1::DEVICE_CPU);
    if (wants.saves) job.mutable_spec()->mutable_checkpoint()->set_dir("/runs/" + id);
    job.set_preemptible(wants.preemptible);
    EXPECT_TRUE(store_->Insert(job).ok());
    board_->Publish(job);
    reconciler_->Submitted(job);
    reconciler_->RunOnce();
    return id;
  }
  // After the grace in which agents may reconnect.
  void Settle() { Advance(options_.reattach_grace + absl::Seconds(1)); }
  void Saved(const std::string& node, const std::string& id, int64_t step, int attempt = 1) {
    v1::RankUpdate update = Update(id, 0, attempt);
    update.mutable_saved()->set_step(step);
    update.mutable_saved()->set_path("/runs/" + id);
    reconciler_->OnReport(node, update, 0);
    reconciler_->RunOnce();
  }
  void Left(const std::string& node, const std::string& id, int attempt = 1) {
    v1::RankExit exit;
    exit.set_exit_code(143);
    exit.set_cancelled(true);
    ExitWith(node, id, 0, exit, attempt);
    Stopped(node, id, attempt);
  }
};

TEST_F(ReconcilerPreemptionTest, LowerPrioritySavesLeavesAndResumes) {
  Attach("a", 1);
  Settle();
  SubmitWith("low", {});
  Ready("a", "low", 0);
  Sent("a");
  SubmitWith("high", {/*priority=*/5});
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_PAUSING);
  EXPECT_EQ(Job("low").reason(),
            "preempted by job high, of priority 5: the ranks save and leave, and it resumes "
            "when slots are free");
  EXPECT_THAT(Job("high").reason(), HasSubstr("(held by low); low saves and leaves for it"));
  const std::vector<v1::Stop> stops = StopsSent("a");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_TRUE(stops[0].save());
  Saved("a", "low", 9);
  Left("a", "low");
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("high"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_QUEUED) << "it resumes by itself";
  EXPECT_THAT(Job("low").events(),
              ::testing::Contains(::testing::Property(&v1::Job::Event::message,
                                                      "waits for slots again, to resume after step 9")));
  Exit("a", "high", 0, 0);
  Stopped("a", "high");
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("low").attempt(), 2);
  EXPECT_FALSE(Job("low").has_pause());
}

TEST_F(ReconcilerPreemptionTest, KeepsNonPreemptibleUnsavableAndEqualJobs) {
  Attach("a", 4);
  Settle();
  SubmitWith("kept", {0, /*preemptible=*/false});
  SubmitWith("unsaved", {0, true, /*saves=*/false});
  SubmitWith("equal", {5});
  SubmitWith("sick", {});
  v1::RankUpdate failed = Update("sick", 0);
  failed.mutable_saved()->set_step(3);
  failed.mutable_saved()->set_error("disk full");
  reconciler_->OnReport("a", failed, 0);
  reconciler_->RunOnce();
  SubmitWith("high", {5});
  Advance(absl::Minutes(1));
  for (const char* id : {"kept", "unsaved", "equal"}) EXPECT_EQ(StateOf(id), v1::JOB_STATE_STARTING) << id;
  EXPECT_EQ(StateOf("sick"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(StateOf("high"), v1::JOB_STATE_QUEUED);
}

TEST_F(ReconcilerPreemptionTest, WaitsForLeavingJobBeforePreemptingAnother) {
  Attach("a", 2);
  Settle();
  SubmitWith("older", {});
  SubmitWith("newer", {});
  SubmitWith("high", {5});
  Advance(absl::Minutes(1));
  EXPECT_EQ(StateOf("newer"), v1::JOB_STATE_PAUSING);
  EXPECT_EQ(StateOf("older"), v1::JOB_STATE_STARTING);
  Left("a", "newer");
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("high"), v1::JOB_STATE_STARTING);
  Advance(absl::Minutes(1));
  EXPECT_EQ(StateOf("older"), v1::JOB_STATE_STARTING) << "the preempted job preempts no job in turn";
}

TEST_F(ReconcilerPreemptionTest, ResumeAfterPreemptionSurvivesRestart) {
  Attach("a", 1);
  Settle();
  SubmitWith("low", {});
  SubmitWith("high", {5});
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_PAUSING);
  Restart();
  Attach("a", 1, {{"low", 1}});
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_PAUSING);
  EXPECT_THAT(StopsSent("a"), SizeIs(::testing::Ge(1)));
  Cancel("high").IgnoreError();
  Left("a", "low");
  Settle();
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerPreemptionTest, UserMayPausePreemptedJob) {
  Attach("a", 1);
  Settle();
  SubmitWith("low", {});
  SubmitWith("high", {5});
  ASSERT_TRUE(Pause("low").ok());
  EXPECT_EQ(Job("low").pause().preempted_by(), "");
  Left("a", "low");
  Advance(absl::Seconds(5));
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(StateOf("high"), v1::JOB_STATE_STARTING);
}

}  // namespace
}  // namespace fsdpd
