// Starts that wait for the lock of checkpoint.dir, which ranks of an earlier attempt may hold.
#include <sqlite3.h>

#include "base/limits.h"
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Attempt 1 was on "a", which is lost; "b" is cordoned, so that attempt 2 is not launched.
class ReconcilerLockedTest : public ReconcilerCase {
 protected:
  void LoseAttempt1(const std::vector<std::string>& jobs = {"j"}) {
    Attach("a", static_cast<int>(jobs.size()));
    Attach("b", 1);
    ASSERT_TRUE(reconciler_->Cordon("b", "").ok());
    for (const std::string& id : jobs) {
      Submit(id, 1, 1, /*max_attempts=*/3, "/runs/" + id);
      Ready("a", id, 0);
    }
    LoseA();
    ASSERT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  }
  void LaunchAttempt2() {
    ASSERT_TRUE(reconciler_->Uncordon("b").ok());
    Advance(absl::Seconds(8));
    ASSERT_EQ(Job("j").attempt(), 2);
    ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  }
  void LoseA() {
    Detach("a");
    outboxes_.erase("a");
    Advance(absl::Milliseconds(kAgentLostAfterMs) + absl::Seconds(5));
  }
  void DeleteA() { ASSERT_TRUE(reconciler_->DeleteNode("a", /*force=*/true).ok()); }
  void ExpectNamed(const std::string& holder) {
    EXPECT_EQ(Job("j").reason(), "waiting to start: ranks of an earlier attempt may still run on " + holder +
                                     " and lock checkpoint.dir; rank 0 waits up to 3 minutes for the lock");
    EXPECT_EQ(Job("j").events().rbegin()->node(), "a");
    const int64_t revision = Job("j").revision();
    Advance(absl::Seconds(5));
    EXPECT_EQ(Job("j").revision(), revision) << "reported once";
  }
};

// Regression: only the log of its rank 0 named it.
TEST_F(ReconcilerLockedTest, StartingJobNamesLostNodeThatMayHoldLock) {
  LoseAttempt1();
  LaunchAttempt2();
  ExpectNamed("lost node a");
  Attach("a", 1, {{"j", 1}});
  EXPECT_EQ(Job("j").reason(), "all agents are connected again");
  Ready("b", "j", 0, 2);
  EXPECT_EQ(Job("j").reason(), "its rank runs");
}

// Regression: the reason was that all agents are connected again.
TEST_F(ReconcilerLockedTest, StartingJobNamesNodeDeletedMeanwhile) {
  LoseAttempt1();
  LaunchAttempt2();
  DeleteA();
  reconciler_->RunOnce();
  ExpectNamed("deleted node a");
  Ready("b", "j", 0, 2);
  EXPECT_EQ(Job("j").reason(), "its rank runs");
  EXPECT_TRUE(Job("j").deleted_hosts().empty()) << "the job holds the lock";
}

// Regression: it named no node.
TEST_F(ReconcilerLockedTest, StartingJobNamesNodeDeletedBeforeLaunch) {
  LoseAttempt1();
  DeleteA();
  LaunchAttempt2();
  ExpectNamed("deleted node a");
  Attach("a", 1, {{"j", 1}});
  EXPECT_EQ(Job("j").reason(), "all agents are connected again");
}

TEST_F(ReconcilerLockedTest, RetriedJobNamesNodeDeletedAfterItsEnd) {
  LoseAttempt1();
  ASSERT_TRUE(Cancel("j").ok());
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
  DeleteA();
  ASSERT_TRUE(reconciler_->Retry("j", "").ok());
  LaunchAttempt2();
  ExpectNamed("deleted node a");
}

// Regression: the node was named, although its agent had reported in between that no rank was left.
TEST_F(ReconcilerLockedTest, RetriedJobDoesNotNameNodeThatRegisteredAndWasDeletedAgain) {
  LoseAttempt1();
  ASSERT_TRUE(Cancel("j").ok());
  DeleteA();
  Attach("a", 1);
  LoseA();
  DeleteA();
  ASSERT_TRUE(reconciler_->Retry("j", "").ok());
  LaunchAttempt2();
  EXPECT_THAT(Job("j").reason(), Not(HasSubstr("ranks of an earlier attempt")));
}

// The reason that named the node is replaced while the other node's agent is disconnected.
TEST_F(ReconcilerLockedTest, DeletedNodeIsRememberedAcrossRestart) {
  LoseAttempt1();
  DeleteA();
  Restart();
  Attach("b", 1);
  Advance(absl::Seconds(20));
  LaunchAttempt2();
  ExpectNamed("deleted node a");
  Restart();
  Attach("b", 1, {{"j", 2}});
  Advance(absl::Seconds(8));
  ExpectNamed("deleted node a");
  Detach("b");
  Advance(absl::Seconds(1));
  ASSERT_THAT(Job("j").reason(), HasSubstr("waits for the agent of b"));
  Attach("b", 1, {{"j", 2}});
  Advance(absl::Seconds(8));
  ExpectNamed("deleted node a");
}

// Regression: the record of an ended job could not be read, and the node could not be deleted.
TEST_F(ReconcilerLockedTest, DamagedRecordDoesNotBlockNodeDeletion) {
  LoseAttempt1({"i", "j"});
  ASSERT_TRUE(Cancel("i").ok());
  Advance(absl::Seconds(2));
  reconciler_.reset();
  store_.reset();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((dir_.path() + "/fsdpd.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "UPDATE jobs SET job = x'ff' WHERE id = 'i'", nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  Restart();
  ASSERT_TRUE(absl::IsDataLoss(store_->Get("i").status()));
  Attach("b", 1);
  Advance(absl::Seconds(20));
  DeleteA();
  EXPECT_EQ(nodes_->Snapshot().size(), 1u) << "only b";
  EXPECT_THAT(Job("j").deleted_hosts(), ElementsAre("a"));
}

// Regression: nothing ran on it, and the reason named it as a deleted node.
TEST_F(ReconcilerLockedTest, ReregisteredNodeIsNotNamedAfterSecondDeletion) {
  LoseAttempt1();
  DeleteA();
  ASSERT_TRUE(Pause("j").ok());  // It would be launched on "a".
  Attach("a", 1);
  EXPECT_THAT(Job("j").deleted_hosts(), IsEmpty());
  LoseA();
  DeleteA();
  ASSERT_TRUE(Resume("j").ok());
  LaunchAttempt2();
  EXPECT_THAT(Job("j").reason(), Not(HasSubstr("ranks of an earlier attempt")));
}

TEST_F(ReconcilerLockedTest, RetriedJobDoesNotNameReregisteredNode) {
  LoseAttempt1();
  ASSERT_TRUE(Cancel("j").ok());
  DeleteA();
  Attach("a", 1);
  Detach("a");
  outboxes_.erase("a");
  ASSERT_TRUE(reconciler_->Retry("j", "").ok());
  Advance(absl::Milliseconds(kAgentLostAfterMs) + absl::Seconds(5));
  DeleteA();
  LaunchAttempt2();
  EXPECT_THAT(Job("j").reason(), Not(HasSubstr("ranks of an earlier attempt")));
}

// Regression: its reason became "all agents are connected again" in the first tick.
TEST_F(ReconcilerLockedTest, KeepsDeletedNodeFromReasonOfOlderRelease) {
  LoseAttempt1();
  DeleteA();
  LaunchAttempt2();
  v1::Job job = Job("j");
  job.clear_deleted_hosts();  // Older releases have only the reason.
  ASSERT_TRUE(store_->Update(job).ok());
  Restart();
  Attach("b", 1, {{"j", 2}});
  Advance(absl::Seconds(20));
  ExpectNamed("deleted node a");
  Attach("a", 1);
  EXPECT_EQ(Job("j").reason(), "all agents are connected again");
}

}  // namespace
}  // namespace fsdpd
