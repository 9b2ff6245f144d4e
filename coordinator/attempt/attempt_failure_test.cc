#include "coordinator/attempt/attempt_failure.h"

#include <signal.h>

#include "coordinator/testing/attempt_case.h"

namespace fsdpd {
namespace {

class AttemptFailureTest : public AttemptCase {
 protected:
  std::optional<v1::Job::Failure> FailureNow() { return FailureIn(facts_, Presences(), now_, options_); }
  // The rank that is the cause once failures have settled; -1: a node; -2: no failure.
  int CauseAfter(absl::Duration settle) {
    now_ += settle;
    const std::optional<v1::Job::Failure> failure = FailureNow();
    return failure.has_value() ? failure->rank() : -2;
  }
  int Cause() { return CauseAfter(options_.settle); }
  std::optional<v1::Job::Failure> HangNow() { return HangIn(facts_, /*stages=*/1, Presences(), now_); }
};

TEST_F(AttemptFailureTest, ProgressOrOldReportIsNotAHang) {
  for (int rank = 0; rank < 4; ++rank) Still(rank, 1);
  EXPECT_TRUE(HangNow().has_value());
  facts_.TakeNoProgress("node-1", 3, v1::RankNoProgress(), now_);
  EXPECT_FALSE(HangNow().has_value());
  Still(3, 1);
  now_ += absl::Seconds(15);
  EXPECT_FALSE(HangNow().has_value());
}

TEST_F(AttemptFailureTest, StoppedRankIsAHangAfterOthersWaited) {
  v1::RankNoProgress stopped;
  stopped.set_limit_ms(30000);
  stopped.set_process(v1::PROCESS_STATE_STOPPED);
  stopped.set_no_progress_ms(39000);
  facts_.TakeNoProgress("node-0", 1, stopped, now_);
  EXPECT_FALSE(HangNow().has_value());
  stopped.set_no_progress_ms(41000);
  facts_.TakeNoProgress("node-0", 1, stopped, now_);
  EXPECT_EQ(HangNow()->rank(), 1);
  EXPECT_EQ(HangNow()->hang().kind(), v1::Job::Hang::KIND_UNRESPONSIVE);
}

TEST_F(AttemptFailureTest, AddsPositionToErrorWithoutPlace) {
  const std::string position = "step 12: compute in Forward head mb 0", added = "; it was in " + position;
  const std::string own = "step 12: #3 Forward head mb 0: out of memory", nccl = "a step of group 'dp': gone";
  for (const auto& [error, words] : std::map<std::string, std::string>{
           {"", "killed by signal 9 (SIGKILL)" + added}, {own, own}, {nccl, nccl + added}}) {
    v1::RankExit exit;
    exit.set_signal(SIGKILL);
    exit.set_error(error);
    exit.set_position(position);
    Reset(false);
    ExitWith(1, exit, 0);
    now_ += options_.settle;
    EXPECT_EQ(FailureNow()->error(), words);
  }
}

TEST_F(AttemptFailureTest, EarliestFailureIsTheCauseEvenIfItArrivesLater) {
  Exit(0, 1, 2000);
  EXPECT_FALSE(FailureNow().has_value()) << "within the settling time";
  Exit(3, 1, 1000);
  EXPECT_EQ(Cause(), 3);
  EXPECT_EQ(FailureNow()->node(), "node-1");
  EXPECT_EQ(FailureNow()->error(), "error of rank 3");
}

TEST_F(AttemptFailureTest, RankThatLeftAfterPeerFailureIsNotTheCause) {
  v1::RankExit left;
  left.set_exit_code(3);
  left.set_peer_failed(true);
  ExitWith(0, left, -1'000'000'000);  // Reported as older than its own cause.
  Exit(1, 1, 1000);
  EXPECT_EQ(Cause(), 1);
}

TEST_F(AttemptFailureTest, TerminatedRankIsTheCauseThoughPeersFailedFirst) {
  Exit(2, 1, 1'000'000'000);
  v1::RankExit terminated;
  terminated.set_exit_code(143);
  terminated.set_error("left at step 12, as it was told to");
  terminated.set_position("step 12: compute in Forward head mb 0");
  terminated.set_peer_failed(true);  // Its peer failed before it exited, and it was informed.
  ExitWith(1, terminated, 1'400'000'000);
  EXPECT_EQ(Cause(), 1);
  EXPECT_EQ(FailureNow()->error(),
            "SIGTERM from outside, not from its agent; it was in step 12: compute in Forward head mb 0");
}

TEST_F(AttemptFailureTest, RankKilledBeforeNodeLeftIsTheCause) {
  v1::RankExit killed;
  killed.set_signal(SIGKILL);
  v1::RankExit drained;
  drained.set_exit_code(143);
  drained.set_cancelled(true);
  drained.set_drained(true);
  for (const int64_t nanos : {1000, 3000}) {
    Reset(false);
    ExitWith(1, killed, nanos);
    ExitWith(2, drained, 2000);
    EXPECT_EQ(Cause(), nanos < 2000 ? 1 : 2);
    EXPECT_EQ(FailureNow()->drained(), nanos > 2000);
    now_ -= options_.settle;
  }
}

TEST_F(AttemptFailureTest, StopLongAfterFailureIsAConsequence) {
  Exit(2, 1, 1'000'000'000);
  Exit(0, 143, 9'000'000'000, /*cancelled=*/true);
  EXPECT_EQ(Cause(), 2);
}

TEST_F(AttemptFailureTest, JudgesFailureOnceDisconnectedNodeReturned) {
  Exit(1, 1, 1000);
  presence_["node-1"] = Presence::kDisconnected;
  EXPECT_EQ(Cause(), -2);
  presence_["node-1"] = Presence::kConnected;
  facts_.TakeAttached("node-1", {2, 3}, now_);
  EXPECT_EQ(CauseAfter(options_.missing_settle), 1);
}

TEST_F(AttemptFailureTest, BlamesNodeThatIsLostAloneWhileCoordinatorRan) {
  for (const bool recovered : {false, true}) {
    Reset(recovered);
    presence_ = {{"node-1", Presence::kLost}};
    ASSERT_TRUE(FailureNow().has_value());
    EXPECT_EQ(FailureNow()->cause(), v1::FAILURE_CAUSE_NODE);
    EXPECT_EQ(FailureNow()->node_at_fault(), !recovered) << "it is unknown which node was disconnected";
    presence_["node-0"] = Presence::kDisconnected;
    EXPECT_FALSE(FailureNow()->node_at_fault()) << "both are lost: a network failure";
  }
}

TEST_F(AttemptFailureTest, ReconnectedAgentHasTimeToReportExits) {
  facts_.TakeAttached("node-0", {1}, now_);
  EXPECT_FALSE(FailureNow().has_value());
  EXPECT_EQ(CauseAfter(options_.missing_settle), -1);
  facts_.TakeAttached("node-0", {0, 1}, now_);
  EXPECT_FALSE(FailureNow().has_value());
}

}  // namespace
}  // namespace fsdpd
