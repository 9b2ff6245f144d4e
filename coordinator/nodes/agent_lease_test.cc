#include "coordinator/nodes/agent_lease.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kGrace = absl::Seconds(15);

class AgentLeaseTest : public ::testing::Test {
 protected:
  // The coordinator is awake for `time`.
  void Ticks(absl::Duration time) {
    for (absl::Duration done; done < time; done += kTick) {
      now_ += kTick;
      EXPECT_EQ(lease_.BeginTick(now_), absl::ZeroDuration());
    }
  }

  absl::Time now_ = absl::FromUnixSeconds(5000);
  AgentLease lease_{kGrace, kTick, now_};
};

TEST_F(AgentLeaseTest, ExpiresAfterThreeMissedHeartbeats) {
  Ticks(absl::Seconds(60));
  const absl::Time heard = now_;
  Ticks(absl::Milliseconds(9500));
  EXPECT_FALSE(lease_.Expired(heard));
  Ticks(kTick);
  EXPECT_TRUE(lease_.Expired(heard));
}

TEST_F(AgentLeaseTest, GivesGraceToAgentsNotHeardSinceStart) {
  Ticks(kGrace);
  EXPECT_FALSE(lease_.Expired(absl::InfinitePast()));
  Ticks(kTick);
  EXPECT_TRUE(lease_.Expired(absl::InfinitePast()));
}

TEST_F(AgentLeaseTest, IgnoresSilenceDuringAPause) {
  Ticks(absl::Seconds(60));
  const absl::Time heard = now_;
  now_ += absl::Seconds(12);
  EXPECT_EQ(lease_.BeginTick(now_), absl::Seconds(12));
  EXPECT_FALSE(lease_.Expired(heard));
  Ticks(kGrace);
  EXPECT_FALSE(lease_.Expired(heard));
  Ticks(kTick);
  EXPECT_TRUE(lease_.Expired(heard));  // The grace ends, too.
}

TEST_F(AgentLeaseTest, AgentHeardAfterThePauseHasOrdinaryLease) {
  now_ += absl::Seconds(12);
  lease_.BeginTick(now_);
  const absl::Time heard = now_;
  Ticks(absl::Milliseconds(9500));
  EXPECT_FALSE(lease_.Expired(heard));
  Ticks(kTick);
  EXPECT_TRUE(lease_.Expired(heard));
}

TEST_F(AgentLeaseTest, RepeatedPausesDoNotHideLostAgents) {
  Ticks(absl::Seconds(60));
  const absl::Time heard = now_;
  absl::Duration awake;
  while (!lease_.Expired(heard) && awake < absl::Minutes(10)) {
    now_ += absl::Seconds(5);
    lease_.BeginTick(now_);
    Ticks(absl::Seconds(9));
    awake += absl::Seconds(9);
  }
  EXPECT_EQ(awake, absl::Seconds(18)) << "the grace is counted while it is awake, over all pauses";
}

TEST_F(AgentLeaseTest, SlowTicksDoNotHideLostAgents) {
  const absl::Time heard = now_;
  int ticks = 0;
  for (; !lease_.Expired(heard) && ticks < 1000; ++ticks) lease_.BeginTick(now_ += absl::Seconds(4));
  EXPECT_LT(ticks, 160);
}

TEST_F(AgentLeaseTest, CountsAPauseOnlyFromTheLastMessage) {
  Ticks(absl::Seconds(60));
  const absl::Time heard = now_ + absl::Seconds(20);  // From a thread that was not suspended.
  now_ += absl::Seconds(30);
  lease_.BeginTick(now_);
  Ticks(kGrace + kTick);
  EXPECT_FALSE(lease_.Expired(heard));
  Ticks(kTick);
  EXPECT_TRUE(lease_.Expired(heard));
}

TEST_F(AgentLeaseTest, UsesTheTimeOfTheTickStart) {
  Ticks(absl::Seconds(60));
  const absl::Time heard = now_;
  Ticks(absl::Seconds(9));
  now_ += absl::Seconds(12);  // Suspended in the middle of a tick.
  EXPECT_FALSE(lease_.Expired(heard));
}

}  // namespace
}  // namespace fsdpd
