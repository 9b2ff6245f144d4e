#include "coordinator/node_strikes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class NodeStrikesTest : public ::testing::Test {
 protected:
  // The job's next attempt failed by that node.
  std::string Strike(v1::Job* job, const std::string& node) {
    job->set_attempt(job->attempt() + 1);
    job->set_start_unix_nanos(absl::ToUnixNanos(launched_));
    v1::Job::Failure* failure = job->mutable_failure();
    failure->set_attempt(job->attempt());
    failure->set_node(node);
    failure->set_rank(fell_with_rank_);
    failure->set_error("node " + node + " is lost");
    failure->set_blames_node(true);
    const std::string reason = strikes_.Take(*job, now_, now_);
    now_ += absl::Seconds(1);
    launched_ = now_;
    v1::Job::FailedAttempt* kept = job->add_failed_attempts();
    kept->set_attempt(job->attempt());
    kept->set_cause(v1::FAILURE_CAUSE_NODE);
    kept->set_node(node);
    kept->set_blames_node(true);
    return reason;
  }
  static v1::Job Named(const std::string& id) {
    v1::Job job;
    job.set_id(id);
    return job;
  }

  NodeStrikes strikes_;
  int fell_with_rank_ = -1;  // -1: with the node or its agent.
  absl::Time now_ = absl::FromUnixSeconds(100), launched_ = absl::FromUnixSeconds(90);
  v1::Job x_ = Named("x"), y_ = Named("y");
};

TEST_F(NodeStrikesTest, TwoInARowAreOneTooManyOfWhicheverJob) {
  EXPECT_EQ(Strike(&x_, "a"), "");
  EXPECT_EQ(Strike(&y_, "b"), "");
  now_ += absl::Minutes(59);
  EXPECT_EQ(
      Strike(&y_, "b"),
      "two attempts in a row failed by this node: attempt 1 of y: node b is lost; attempt 2 of y: node b "
      "is lost");
  EXPECT_THAT(Strike(&x_, "a"), HasSubstr("attempt 1 of x"));
}

TEST_F(NodeStrikesTest, TwoJobsThatANodeTakesDownAtOnceAreOneEvent) {
  EXPECT_EQ(Strike(&x_, "a"), "");
  launched_ = absl::FromUnixSeconds(90);
  EXPECT_EQ(Strike(&y_, "a"), "");
  EXPECT_NE(Strike(&y_, "a"), "");
}

// One crash cordoned a node for good: the next attempt was launched before anybody noticed it.
TEST_F(NodeStrikesTest, TwoAttemptsThatFallByTheSameEndOfAnAgentAreOneEvent) {
  strikes_.Attached("a", "first", absl::FromUnixSeconds(50));
  fell_with_rank_ = 3;  // It met a node that was dying already.
  EXPECT_EQ(Strike(&x_, "a"), "");
  fell_with_rank_ = -1;
  EXPECT_EQ(Strike(&x_, "a"), "") << "launched into the same life of the agent";
  strikes_.Attached("a", "second", now_);
  launched_ = now_ = now_ + absl::Seconds(1);
  EXPECT_NE(Strike(&x_, "a"), "") << "the end of another life";
}

TEST_F(NodeStrikesTest, AnAgentThatConnectsAgainLivesOn) {
  strikes_.Attached("a", "first", absl::FromUnixSeconds(50));
  fell_with_rank_ = 3;
  EXPECT_EQ(Strike(&x_, "a"), "");
  strikes_.Attached("a", "first", now_);
  launched_ = now_ = now_ + absl::Seconds(1);
  fell_with_rank_ = -1;
  EXPECT_EQ(Strike(&x_, "a"), "");
}

TEST_F(NodeStrikesTest, AnHourApartOrWithAJobBetweenThatEndedWellTheyAreNone) {
  EXPECT_EQ(Strike(&x_, "a"), "");
  now_ += absl::Minutes(61);
  EXPECT_EQ(Strike(&x_, "a"), "");
  strikes_.Forgive("a");
  EXPECT_EQ(Strike(&x_, "a"), "");
  EXPECT_NE(Strike(&x_, "a"), "");
}

TEST_F(NodeStrikesTest, AJobThatTakesOneNodeAfterAnotherDownIsHeldAgainstNone) {
  EXPECT_EQ(Strike(&x_, "a"), "");
  for (const char* node : {"b", "a", "b", "a", "b"}) EXPECT_EQ(Strike(&x_, node), "");
  EXPECT_NE(Strike(&y_, "a"), "") << "its first one counts, and this is another job's";
}

TEST_F(NodeStrikesTest, AJobThatCameFurtherBetweenIsNoSuspect) {
  EXPECT_EQ(Strike(&x_, "a"), "");
  x_.set_attempts_before_checkpoint(1);  // The second one committed a checkpoint.
  x_.add_checkpoints()->set_step(100);
  EXPECT_EQ(Strike(&x_, "b"), "");
  EXPECT_NE(Strike(&y_, "b"), "");
}

TEST_F(NodeStrikesTest, AReasonIsOneShortLine) {
  Strike(&x_, "a");
  y_.set_attempt(1);
  y_.mutable_failure()->set_attempt(1);
  y_.mutable_failure()->set_node("a");
  y_.mutable_failure()->set_error("first\n" + std::string(5000, 'x'));
  y_.set_start_unix_nanos(absl::ToUnixNanos(launched_));
  const std::string reason = strikes_.Take(y_, now_, now_);
  EXPECT_THAT(reason, HasSubstr("first x"));
  EXPECT_LT(reason.size(), 600u);
}

}  // namespace
}  // namespace fsdpd
