#include "coordinator/attempt/attempt_facts.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <utility>

#include "base/rank/exit_code.h"

namespace fsdpd {
namespace {

class AttemptFactsTest : public ::testing::Test {
 protected:
  AttemptFactsTest() { Reset(); }
  void Reset() {
    v1::Job job;
    job.set_id("j");
    job.set_attempt(1);
    for (int node = 0; node < 2; ++node) {
      auto* placement = job.add_placements();
      placement->set_node(node == 0 ? "a" : "b");
      placement->set_first_rank(2 * node);
      placement->set_ranks(2);
    }
    facts_ = AttemptFacts(job, /*recovered=*/false);
  }
  void Fail(int rank, int64_t date_nanos, absl::Duration age = absl::ZeroDuration()) {
    v1::RankExit exit;
    exit.set_exit_code(1);
    exit.set_unix_nanos(date_nanos);
    now_ += absl::Milliseconds(1);
    ASSERT_TRUE(facts_.TakeExit(rank < 2 ? "a" : "b", rank, exit, now_, age));
  }

  AttemptFacts facts_;
  absl::Time now_ = absl::FromUnixSeconds(5000);
};

TEST_F(AttemptFactsTest, NodeWithSlowClockIsNotBlamed) {
  Fail(0, 2'000'000'000);
  Fail(2, 1'000'000'000);  // Arrived later, with an earlier date.
  EXPECT_EQ(facts_.FirstFailure()->rank(), 0);
}

TEST_F(AttemptFactsTest, FailureWhileNodeWasAwayCountsFromItsTime) {
  Fail(0, 1);
  now_ += absl::Seconds(5);
  Fail(2, 1, absl::Seconds(6));
  EXPECT_EQ(facts_.FirstFailure()->rank(), 2);
}

TEST_F(AttemptFactsTest, KeepsTheAgentsOrderWithinANode) {
  Fail(1, 2, absl::Seconds(1));
  Fail(0, 1, absl::Seconds(3));  // The node's time was set in between.
  EXPECT_EQ(facts_.FirstFailure()->rank(), 1);
}

// Peers lost their connections before the rank reported its error.
TEST_F(AttemptFactsTest, RankWithAnErrorIsTheCauseThoughPeersFailedFirst) {
  v1::RankExit exit;
  exit.set_exit_code(3);
  exit.set_peer_failed(true);
  exit.mutable_error_class()->set_kind(v1::ErrorClass::KIND_MEMORY);
  const AttemptFacts none = facts_;
  for (const auto& [after, cause] : {std::pair(absl::Milliseconds(10), 2), std::pair(absl::Seconds(5), 0)}) {
    facts_ = none;
    Fail(0, 1);
    ASSERT_TRUE(facts_.TakeExit("b", 2, exit, now_ + after, absl::ZeroDuration()));
    EXPECT_EQ(facts_.FirstFailure()->rank(), cause) << after;
  }
}

// The agent may see a killed rank's neighbor exit first, and then notifies the dead rank.
TEST_F(AttemptFactsTest, KilledRankIsTheCauseThoughPeersExitedFirst) {
  const AttemptFacts none = facts_;
  for (const int signal : {SIGKILL, SIGSEGV, SIGABRT, SIGINT}) {
    for (const bool notified : {false, true}) {
      facts_ = none;
      v1::RankExit left, ended;
      left.set_exit_code(kPeerFailedExitCode);
      ended.set_signal(signal);
      ended.set_peer_failed(notified);
      ASSERT_TRUE(facts_.TakeExit("a", 0, left, now_, absl::ZeroDuration()));
      ASSERT_TRUE(facts_.TakeExit("b", 2, left, now_, absl::ZeroDuration()));
      EXPECT_TRUE(IsConsequence(*facts_.FirstFailure()));
      ASSERT_TRUE(facts_.TakeExit("b", 3, ended, now_ + absl::Milliseconds(15), absl::ZeroDuration()));
      EXPECT_EQ(facts_.FirstFailure()->rank(), 3) << signal << notified;
      EXPECT_FALSE(IsConsequence(*facts_.FirstFailure()));
    }
  }
}

TEST_F(AttemptFactsTest, NoExitIsLaterThanItsArrival) {
  Fail(0, 1, -absl::Hours(1));
  EXPECT_EQ(facts_.ranks()[0].ended, now_);
  EXPECT_EQ(facts_.LastEnd(), absl::InfiniteFuture());
  for (const int rank : {1, 2, 3}) Fail(rank, 1);
  EXPECT_EQ(facts_.LastEnd(), now_);
}

TEST_F(AttemptFactsTest, KilledRankIsTheCauseButCrashMayBeAConsequence) {
  for (const int signal : {SIGKILL, SIGABRT}) {
    Reset();
    Fail(2, 1, absl::Milliseconds(400));
    v1::RankExit killed;
    killed.set_signal(signal);
    ASSERT_TRUE(facts_.TakeExit("a", 1, killed, now_, absl::ZeroDuration()));
    EXPECT_EQ(facts_.FirstFailure()->rank(), signal == SIGKILL ? 1 : 2);
  }
}

TEST_F(AttemptFactsTest, TerminationLongAfterFailureIsNotTheCause) {
  Fail(2, 1, absl::Milliseconds(1100));
  v1::RankExit terminated;
  terminated.set_exit_code(kStoppedExitCode);
  ASSERT_TRUE(facts_.TakeExit("a", 0, terminated, now_, absl::ZeroDuration()));
  EXPECT_EQ(facts_.FirstFailure()->rank(), 2);
}

TEST_F(AttemptFactsTest, RepeatedExitKeepsFirstReport) {
  ASSERT_TRUE(facts_.TakeExit("a", 0, v1::RankExit(), now_, absl::ZeroDuration()));
  Fail(0, 2);
  EXPECT_EQ(facts_.FirstFailure(), nullptr);
}

TEST_F(AttemptFactsTest, RejectsRanksOfAnotherNode) {
  EXPECT_FALSE(facts_.TakeReady("b", 0));
  EXPECT_FALSE(facts_.TakeExit("a", 2, v1::RankExit(), now_, absl::ZeroDuration()));
  EXPECT_FALSE(facts_.TakeReady("a", -1));
  EXPECT_FALSE(facts_.TakeReady("b", 4));
  EXPECT_FALSE(facts_.TakeStopped("c"));
}

}  // namespace
}  // namespace fsdpd
