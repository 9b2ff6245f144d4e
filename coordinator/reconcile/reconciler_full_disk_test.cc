// Jobs while the store cannot write: actions that end ranks run, all others wait.
#include <absl/strings/match.h>

#include <optional>

#include "base/limits.h"
#include "coordinator/testing/full_disk.h"
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using ReconcilerFullDiskTest = ReconcilerCase;

TEST_F(ReconcilerFullDiskTest, CancelsRunningJobDespiteFailedWrite) {
  RunOn({"a"});
  std::optional<FullDisk> full(std::in_place);
  const auto job = Cancel("j", "enough");
  const size_t stops = StopsSent("a").size();
  Stopped("a", "j");
  const int free_slots = nodes_->Snapshot()[0].free_slots;
  full.reset();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_CANCELLING);
  EXPECT_THAT(job->reason(), HasSubstr("stopping the ranks: enough; not on disk yet: "));
  EXPECT_EQ(stops, 1u);
  EXPECT_EQ(free_slots, 1);
  Advance(absl::Seconds(2));
  EXPECT_EQ(store_->Get("j")->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(store_->Get("j")->ShortDebugString(), Not(HasSubstr("not on disk")));
}

// Regression: the reason was "stopping the ranks" until there was space.
TEST_F(ReconcilerFullDiskTest, CancelledJobWithoutRanksWaitsOnlyForStore) {
  RunOn({"a"});
  std::optional<FullDisk> full(std::in_place);
  const auto job = Cancel("j", "enough");
  Stopped("a", "j");
  Advance(absl::Seconds(2));
  const v1::Job meanwhile = Job("j");
  full.reset();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(meanwhile.state(), v1::JOB_STATE_CANCELLING);
  EXPECT_THAT(meanwhile.reason(), HasSubstr("waiting only for the store: cancelled, all ranks are gone"));
  EXPECT_THAT(meanwhile.reason(), HasSubstr("; not on disk yet: "));
  Advance(absl::Seconds(2));
  const v1::Job stored = *store_->Get("j");
  EXPECT_EQ(stored.state(), v1::JOB_STATE_CANCELLED);
  int notes = 0;
  for (const v1::Job::Event& event : stored.events())
    notes += absl::StartsWith(event.message(), "waiting only for the store") ? 1 : 0;
  EXPECT_EQ(notes, 1);
}

// Regression: the job waited only for the store, although ranks were back.
TEST_F(ReconcilerFullDiskTest, ReturnedRanksReplaceWaitForStore) {
  RunOn({"a", "b"});
  ASSERT_TRUE(Cancel("j").ok());
  Stopped("b", "j");
  Detach("a");
  outboxes_.erase("a");
  std::optional<FullDisk> full(std::in_place);
  Advance(absl::Milliseconds(kAgentLostAfterMs) + absl::Seconds(5));
  const v1::Job without = Job("j");
  Attach("a", 1, {{"j", 1}});
  Advance(absl::Seconds(2));
  const v1::Job with = Job("j");
  full.reset();
  EXPECT_THAT(without.reason(), StartsWith("waiting only for the store: "));
  EXPECT_EQ(with.state(), v1::JOB_STATE_CANCELLING);
  EXPECT_THAT(with.reason(), StartsWith("all agents are connected again; ranks are leaving"));
}

TEST_F(ReconcilerFullDiskTest, StopsFailedJobDespiteFailedWrite) {
  RunOn({"a"});
  std::optional<FullDisk> full(std::in_place);
  Exit("a", "j", 0, 9);
  Advance(absl::Seconds(2));
  const v1::Job meanwhile = Job("j");
  const size_t stops = StopsSent("a").size();
  full.reset();
  EXPECT_EQ(meanwhile.state(), v1::JOB_STATE_STOPPING);
  EXPECT_THAT(meanwhile.reason(), HasSubstr("not on disk yet: "));
  EXPECT_EQ(stops, 1u);
  Stopped("a", "j");
  Advance(absl::Seconds(2));
  EXPECT_EQ(store_->Get("j")->state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(store_->Get("j")->has_failure());
}

TEST_F(ReconcilerFullDiskTest, ReportsFullDiskOfQueuedJob) {
  RunOn({"a"});
  Submit("next", 1, 1);
  std::optional<FullDisk> full(std::in_place);
  Exit("a", "j", 0, 9);
  Stopped("a", "j");
  Advance(absl::Seconds(2));
  v1::Job next = Job("next");
  board_->AddWaiting(&next);
  full.reset();
  EXPECT_EQ(next.waiting().code(), v1::Job::Waiting::CODE_DISK)
      << "its slot is free, but its launch is not stored";
  EXPECT_EQ(next.waiting().queue_position(), 1);
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("next"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerFullDiskTest, ReportsUnstoredCancelOnlyWhileTrue) {
  RunOn({"a"});
  std::optional<FullDisk> full(std::in_place);
  const auto told = Cancel("j", "enough");
  const v1::Job meanwhile = Job("j");
  full.reset();
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_THAT(meanwhile.reason(), HasSubstr("not on disk yet: "));
  Advance(absl::Seconds(2));
  for (const v1::Job& job : {Job("j"), *store_->Get("j")}) {
    EXPECT_EQ(job.state(), v1::JOB_STATE_CANCELLING);
    EXPECT_EQ(job.reason(), "stopping the ranks: enough");
    EXPECT_GT(job.revision(), meanwhile.revision()) << "watchers are notified";
  }
}

TEST_F(ReconcilerFullDiskTest, RejectsUnstoredCancelOfQueuedJob) {
  Submit("j", 1, 1);
  std::optional<FullDisk> full(std::in_place);
  const auto job = Cancel("j");
  full.reset();
  EXPECT_FALSE(job.ok());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
}

TEST_F(ReconcilerFullDiskTest, LaunchesNothingWhileStoreCannotWrite) {
  Attach("a", 1);
  Submit("first", 1, 1);
  ASSERT_EQ(LaunchesSent("a").size(), 1u);
  std::optional<FullDisk> full(std::in_place);
  Exit("a", "first", 0, 0);
  const v1::JobState stuck = StateOf("first");
  full.reset();
  EXPECT_EQ(stuck, v1::JOB_STATE_STARTING);
  Advance(absl::Milliseconds(100));
  EXPECT_EQ(StateOf("first"), v1::JOB_STATE_SUCCEEDED);
}

}  // namespace
}  // namespace fsdpd
