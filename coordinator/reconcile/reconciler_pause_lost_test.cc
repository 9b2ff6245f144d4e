// Jobs that are paused while a node does not answer: ranks there may still train and save.
#include "base/limits.h"
#include "coordinator/testing/pause_case.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ReconcilerPauseLostTest : public PauseCase {
 protected:
  void Lose(const std::string& node) {
    Detach(node);
    outboxes_.erase(node);
    Advance(absl::Milliseconds(kAgentLostAfterMs) + absl::Seconds(2));
  }
  std::vector<std::string> Unconfirmed() {
    const v1::Job job = Job("j");
    return {job.pause().unconfirmed().begin(), job.pause().unconfirmed().end()};
  }
};

TEST_F(ReconcilerPauseLostTest, WaitsForRanksThatMayStillTrain) {
  RunOn({"a"});
  Saved("a", 5);
  Stepped("a", 7);
  Pause("j", 4000).IgnoreError();
  Lose("a");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
  EXPECT_THAT(Unconfirmed(), ElementsAre("a"));
  EXPECT_THAT(Job("j").reason(), HasSubstr("node a is lost, and ranks there may still train and save"));
  EXPECT_THAT(Job("j").reason(), HasSubstr("fsdpctl resume"));
  const int64_t revision = Job("j").revision();
  Advance(absl::Seconds(60));
  EXPECT_EQ(Job("j").revision(), revision) << "it is reported once";
  Attach("a", 1, {{"j", 1}});
  const std::vector<v1::Stop> stops = StopsSent("a");
  ASSERT_FALSE(stops.empty());
  EXPECT_TRUE(stops.back().save()) << "it has not timed out";
  Stepped("a", 11);
  Saved("a", 11);
  EXPECT_THAT(Unconfirmed(), IsEmpty());
  Left("a", 0, "left after step 11, which is saved");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(Job("j").pause().step(), 11);
  EXPECT_EQ(Job("j").pause().lost_steps(), 0);
  EXPECT_EQ(Job("j").reason(), "paused after step 11, which is saved");
}

TEST_F(ReconcilerPauseLostTest, SecondPauseKeepsUnconfirmedReason) {
  RunOn({"a"});
  Pause("j").IgnoreError();
  Lose("a");
  Pause("j", 2000).IgnoreError();
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
  EXPECT_THAT(Unconfirmed(), ElementsAre("a"));
  EXPECT_THAT(Job("j").reason(), HasSubstr("node a is lost, and ranks there may still train and save"));
}

// Regression: each call was an event, and so was the next tick.
TEST_F(ReconcilerPauseLostTest, ReasonIsRecordedOnceDespiteOtherEvents) {
  RunOn({"a"});
  Pause("j").IgnoreError();
  Lose("a");
  ASSERT_TRUE(reconciler_->Pause("j", "the disk is full", 600000).ok());
  reconciler_->RunOnce();
  EXPECT_THAT(Job("j").reason(), HasSubstr("node a is lost"));
  const int64_t revision = Job("j").revision();
  ASSERT_TRUE(reconciler_->Pause("j", "the disk is full", 600000).ok());
  reconciler_->RunOnce();
  EXPECT_EQ(Job("j").revision(), revision);
  ASSERT_TRUE(reconciler_->Pause("j", "it is in the way", 600000).ok());
  EXPECT_GT(Job("j").revision(), revision) << "another reason is recorded";
}

TEST_F(ReconcilerPauseLostTest, ReconnectWithoutRanksCompletesPause) {
  RunOn({"a", "b"});
  Pause("j").IgnoreError();
  Saved("a", 9);
  Left("a", 0, "left after step 9, which is saved");
  Lose("b");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
  EXPECT_THAT(Unconfirmed(), ElementsAre("b"));
  Restart();
  Attach("a", 1);
  Advance(absl::Seconds(20));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING) << "a restart does not change that";
  Attach("b", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(Job("j").reason(), "paused after step 9, which is saved");
}

TEST_F(ReconcilerPauseLostTest, ResumeContinuesWithoutLostNode) {
  RunOn({"a"});
  Saved("a", 5);
  Stepped("a", 7);
  Pause("j").IgnoreError();
  Lose("a");
  Attach("b", 1);
  ASSERT_TRUE(Resume("j").ok());
  reconciler_->RunOnce();
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  const std::vector<v1::Launch> launches = LaunchesSent("b");
  ASSERT_EQ(launches.size(), 1U);
  EXPECT_EQ(launches[0].checkpoint_step(), 5);
  const v1::Job job = Job("j");
  for (const auto& event : job.events())
    EXPECT_THAT(event.message(), Not(HasSubstr("are lost"))) << "that is unknown";
  Attach("a", 1, {{"j", 1}});
  EXPECT_FALSE(StopsSent("a").empty()) << "the ranks of the previous attempt end";
}

TEST_F(ReconcilerPauseLostTest, CancelEndsJob) {
  RunOn({"a"});
  Pause("j").IgnoreError();
  Lose("a");
  Cancel("j").IgnoreError();
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(Job("j").reason(),
              HasSubstr("all ranks elsewhere are gone (node a is lost: the end of its ranks could "
                        "not be confirmed)"));
}

// Regression: the node was forgotten after a day.
TEST_F(ReconcilerPauseLostTest, NamesNodeOfEarlierAttemptUntilDeleted) {
  MoveFromAToB();
  StallRank(kLostNodeRetention + absl::Hours(1));
  Advance(absl::Seconds(20));
  Saved("b", 20, 2);
  Pause("j").IgnoreError();
  Left("b", 0, "left after step 20, which is saved", 2);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
  EXPECT_THAT(Unconfirmed(), ElementsAre("a"));
  ASSERT_TRUE(reconciler_->DeleteNode("a", /*force=*/true).ok());
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
}

// Regression: it was PAUSED while ranks of attempt 1 still trained and saved.
TEST_F(ReconcilerPauseLostTest, WaitsForRanksOfEarlierAttempt) {
  for (const bool restarts : {false, true}) {
    SCOPED_TRACE(restarts);
    MoveFromAToB();
    Saved("b", 20, 2);
    if (restarts) Restart();
    if (restarts) Attach("b", 1, {{"j", 2}});
    if (restarts) Saved("b", 20, 2);
    Pause("j").IgnoreError();
    Left("b", 0, "left after step 20, which is saved", 2);
    EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
    EXPECT_THAT(Unconfirmed(), ElementsAre("a"));
    EXPECT_THAT(Job("j").reason(), HasSubstr("node a is lost, and ranks there may still train and save"));
    Advance(absl::Seconds(60));
    EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
    Attach("a", 1, {{"j", 1}});
    EXPECT_EQ(StopsSent("a").size(), 1U);
    EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
    EXPECT_EQ(Job("j").reason(), "lost ranks reconnected and are leaving");
    Stopped("a", "j", 1);
    EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
    EXPECT_EQ(Job("j").reason(), "paused after step 20, which is saved");
    Cancel("j").IgnoreError();
    ASSERT_TRUE(store_->Delete("j").ok());
    Detach("b");
  }
}

TEST_F(ReconcilerPauseLostTest, ResumeContinuesWithoutNodeOfEarlierAttempt) {
  MoveFromAToB();
  Saved("b", 20, 2);
  Pause("j").IgnoreError();
  Left("b", 0, "left after step 20, which is saved", 2);
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
  ASSERT_TRUE(Resume("j").ok());
  reconciler_->RunOnce();
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 3);
}

TEST_F(ReconcilerPauseLostTest, DeletedNodeDelaysNoPause) {
  MoveFromAToB();
  Saved("b", 20, 2);
  ASSERT_TRUE(reconciler_->DeleteNode("a", /*force=*/true).ok());
  Pause("j").IgnoreError();
  Left("b", 0, "left after step 20, which is saved", 2);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
}

// Regression: the errors did not mention resume, and waiting, as one of them advised, took forever.
TEST_F(ReconcilerPauseLostTest, NodeDeletionIsRejectedWithPausingJob) {
  RunOn({"a"});
  Saved("a", 5);
  Pause("j").IgnoreError();
  Lose("a");
  const auto refused = [&] { return std::string(reconciler_->DeleteNode("a", /*force=*/false).message()); };
  EXPECT_EQ(
      refused(),
      "node a hosts ranks of j: `fsdpctl resume` continues the pausing jobs (j) without the node, `fsdpctl "
      "cancel` ends them");
}

TEST_F(ReconcilerPauseLostTest, NodeDeletionCompletesPause) {
  MoveFromAToB();
  Saved("b", 20, 2);
  EXPECT_THAT(std::string(reconciler_->DeleteNode("a", /*force=*/false).message()),
              HasSubstr("process left, then delete the node with --force"));
  Pause("j").IgnoreError();
  Left("b", 0, "left after step 20, which is saved", 2);
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
  EXPECT_THAT(std::string(reconciler_->DeleteNode("a", /*force=*/false).message()),
              HasSubstr("with --force; j is paused then, and `fsdpctl resume` continues it"));
  ASSERT_TRUE(reconciler_->DeleteNode("a", /*force=*/true).ok());
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(Job("j").reason(), "paused after step 20, which is saved");
}

// A node that was connected for less time than its ranks took to end.
TEST_F(ReconcilerPauseLostTest, WaitsWhenNodeOfEarlierAttemptIsLostAgain) {
  MoveFromAToB();
  Saved("b", 20, 2);
  Attach("a", 1, {{"j", 1}});
  Lose("a");
  Pause("j").IgnoreError();
  Left("b", 0, "left after step 20, which is saved", 2);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
  EXPECT_THAT(Unconfirmed(), ElementsAre("a"));
}

}  // namespace
}  // namespace fsdpd
