#include "coordinator/attempt/node_failures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class NodeFailuresTest : public ::testing::Test {
 protected:
  // The job's next attempt failed on that node.
  std::string Failure(v1::Job* job, const std::string& node) {
    job->set_attempt(job->attempt() + 1);
    job->set_start_unix_nanos(absl::ToUnixNanos(launched_));
    v1::Job::Failure* failure = job->mutable_failure();
    failure->set_attempt(job->attempt());
    failure->set_node(node);
    failure->set_rank(fell_with_rank_);
    failure->set_error("node " + node + " is lost");
    failure->set_node_at_fault(true);
    const std::string reason = failures_.Take(*job, now_, now_);
    now_ += absl::Seconds(1);
    launched_ = now_;
    v1::Job::FailedAttempt* kept = job->add_failed_attempts();
    kept->set_attempt(job->attempt());
    kept->set_cause(v1::FAILURE_CAUSE_NODE);
    kept->set_node(node);
    kept->set_node_at_fault(true);
    return reason;
  }
  static v1::Job Named(const std::string& id) {
    v1::Job job;
    job.set_id(id);
    return job;
  }

  NodeFailures failures_;
  int fell_with_rank_ = -1;  // -1: the node or its agent failed.
  absl::Time now_ = absl::FromUnixSeconds(100), launched_ = absl::FromUnixSeconds(90);
  v1::Job x_ = Named("x"), y_ = Named("y");
};

TEST_F(NodeFailuresTest, CordonsAfterTwoFailuresInARowOfAnyJobs) {
  EXPECT_EQ(Failure(&x_, "a"), "");
  EXPECT_EQ(Failure(&y_, "b"), "");
  now_ += absl::Minutes(59);
  EXPECT_EQ(
      Failure(&y_, "b"),
      "two attempts in a row failed on this node: attempt 1 of y: node b is lost; attempt 2 of y: node b "
      "is lost");
  EXPECT_THAT(Failure(&x_, "a"), HasSubstr("attempt 1 of x"));
}

TEST_F(NodeFailuresTest, SimultaneousFailuresOfTwoJobsAreOneEvent) {
  EXPECT_EQ(Failure(&x_, "a"), "");
  launched_ = absl::FromUnixSeconds(90);
  EXPECT_EQ(Failure(&y_, "a"), "");
  EXPECT_NE(Failure(&y_, "a"), "");
}

// Regression: one crash cordoned a node permanently, because the next attempt was launched before the crash
// was noticed.
TEST_F(NodeFailuresTest, FailuresByOneAgentEndAreOneEvent) {
  failures_.Attached("a", "first", absl::FromUnixSeconds(50));
  fell_with_rank_ = 3;  // The node was already failing.
  EXPECT_EQ(Failure(&x_, "a"), "");
  fell_with_rank_ = -1;
  EXPECT_EQ(Failure(&x_, "a"), "") << "launched while the same agent process ran";
  failures_.Attached("a", "second", now_);
  launched_ = now_ = now_ + absl::Seconds(1);
  EXPECT_NE(Failure(&x_, "a"), "") << "the end of another agent process";
}

TEST_F(NodeFailuresTest, ReconnectDoesNotStartNewLife) {
  failures_.Attached("a", "first", absl::FromUnixSeconds(50));
  fell_with_rank_ = 3;
  EXPECT_EQ(Failure(&x_, "a"), "");
  failures_.Attached("a", "first", now_);
  launched_ = now_ = now_ + absl::Seconds(1);
  fell_with_rank_ = -1;
  EXPECT_EQ(Failure(&x_, "a"), "");
}

TEST_F(NodeFailuresTest, ForgivesAfterAnHourOrASuccessfulJob) {
  EXPECT_EQ(Failure(&x_, "a"), "");
  now_ += absl::Minutes(61);
  EXPECT_EQ(Failure(&x_, "a"), "");
  failures_.ClearFailures("a");
  EXPECT_EQ(Failure(&x_, "a"), "");
  EXPECT_NE(Failure(&x_, "a"), "");
}

TEST_F(NodeFailuresTest, IgnoresJobThatFailsOnOneNodeAfterAnother) {
  EXPECT_EQ(Failure(&x_, "a"), "");
  for (const char* node : {"b", "a", "b", "a", "b"}) EXPECT_EQ(Failure(&x_, node), "");
  EXPECT_NE(Failure(&y_, "a"), "") << "its first failure counts, and this one is another job's";
}

TEST_F(NodeFailuresTest, CountsJobWithProgressInBetween) {
  EXPECT_EQ(Failure(&x_, "a"), "");
  x_.set_attempts_before_checkpoint(1);  // The second one committed a checkpoint.
  x_.add_checkpoints()->set_step(100);
  EXPECT_EQ(Failure(&x_, "b"), "");
  EXPECT_NE(Failure(&y_, "b"), "");
}

TEST_F(NodeFailuresTest, ReasonIsOneShortLine) {
  Failure(&x_, "a");
  y_.set_attempt(1);
  y_.mutable_failure()->set_attempt(1);
  y_.mutable_failure()->set_node("a");
  y_.mutable_failure()->set_error("first\n" + std::string(5000, 'x'));
  y_.set_start_unix_nanos(absl::ToUnixNanos(launched_));
  const std::string reason = failures_.Take(y_, now_, now_);
  EXPECT_THAT(reason, HasSubstr("first x"));
  EXPECT_LT(reason.size(), 600u);
}

}  // namespace
}  // namespace fsdpd
