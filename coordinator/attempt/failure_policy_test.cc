#include "coordinator/attempt/failure_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <set>
#include <vector>

#include "base/rank/exit_code.h"

namespace fsdpd {
namespace {

v1::Job::Failure OfRank(int rank, int exit_code = 1) {
  v1::Job::Failure failure;
  failure.set_rank(rank);
  failure.set_node("a");
  failure.set_exit_code(exit_code);
  return failure;
}

v1::Job::Failure Said(v1::ErrorClass::Kind kind, bool permanent = false) {
  v1::Job::Failure failure = OfRank(0);
  failure.mutable_error_class()->set_kind(kind);
  failure.mutable_error_class()->set_permanent(permanent);
  return failure;
}

TEST(FailurePolicy, DerivesCausesFromReportsAndObservations) {
  struct Case {
    const char* what;
    v1::Job::Failure failure;
    v1::FailureCause cause;
    bool blames_node;
  };
  std::vector<Case> cases = {
      {"a crash", OfRank(3), v1::FAILURE_CAUSE_PROCESS, false},
      {"a refused launch of an older agent", OfRank(0, kRefusedExitCode), v1::FAILURE_CAUSE_NODE, false},
      {"a spec", Said(v1::ErrorClass::KIND_CONFIGURATION), v1::FAILURE_CAUSE_CONFIGURATION, false},
      {"a file", Said(v1::ErrorClass::KIND_DATA), v1::FAILURE_CAUSE_DATA, false},
      {"a device", Said(v1::ErrorClass::KIND_NODE), v1::FAILURE_CAUSE_NODE, true},
      {"a full disk", Said(v1::ErrorClass::KIND_DISK), v1::FAILURE_CAUSE_DISK, false},
      {"a fault that a newer rank knows", Said(static_cast<v1::ErrorClass::Kind>(9)),
       v1::FAILURE_CAUSE_PROCESS, false},
      {"a lost node, of which its owner says whether it is to blame", OfRank(-1, 0), v1::FAILURE_CAUSE_NODE,
       false},
  };
  const auto add = [&](const char* what, v1::FailureCause cause, bool blames, auto change) {
    cases.push_back({what, OfRank(1), cause, blames});
    change(&cases.back().failure);
  };
  using Failure = v1::Job::Failure;
  add("SIGKILL", v1::FAILURE_CAUSE_PROCESS, false, [](Failure* f) {
    f->set_exit_code(0);
    f->set_signal(SIGKILL);
  });
  add("an agent that ends", v1::FAILURE_CAUSE_NODE, false, [](Failure* f) { f->set_stopped_by_agent(true); });
  add("a drained node", v1::FAILURE_CAUSE_DRAINED, false, [](Failure* f) {
    f->set_stopped_by_agent(true);
    f->set_drained(true);
  });
  add("an agent that is stopping", v1::FAILURE_CAUSE_DRAINED, false, [](Failure* f) {
    f->set_refused(true);
    f->set_exit_code(kRefusedExitCode);
  });
  add("a bad step", v1::FAILURE_CAUSE_BAD_STEP, false,
      [](Failure* f) { f->mutable_bad_step()->set_step(8); });
  add("a rank behind", v1::FAILURE_CAUSE_HANG, false,
      [](Failure* f) { f->mutable_hang()->set_kind(v1::Job::Hang::KIND_BEHIND); });
  add("a rank in the kernel", v1::FAILURE_CAUSE_HANG, true, [](Failure* f) {
    f->mutable_hang()->set_kind(v1::Job::Hang::KIND_UNRESPONSIVE);
    f->mutable_hang()->set_caused_by_node(true);
  });
  add("what nobody did", v1::FAILURE_CAUSE_PROCESS, false, [](Failure* f) {
    f->set_rank(-1);
    f->clear_node();
  });
  for (Case& each : cases) {
    Classify(&each.failure);
    EXPECT_EQ(each.failure.cause(), each.cause) << each.what;
    EXPECT_EQ(each.failure.node_at_fault(), each.blames_node) << each.what;
  }
}

class NoOtherTest : public ::testing::Test {
 protected:
  NoOtherTest() {
    job_.set_id("j");
    job_.mutable_spec()->mutable_checkpoint()->set_dir("/runs/7");
  }
  // The next attempt fails after `step`; returns why it is the last one.
  std::string Fail(v1::Job::Failure failure, int64_t step = 0) {
    job_.set_attempt(job_.attempt() + 1);
    job_.clear_last_step();
    if (step > 0) job_.mutable_last_step()->set_step(step);
    failure.set_attempt(job_.attempt());
    if (failure.cause() == v1::FAILURE_CAUSE_UNSPECIFIED) Classify(&failure);
    *job_.mutable_failure() = failure;
    KeepFailedAttempt(&job_);
    return WhyNoRetry(job_, job_.mutable_failure());
  }
  static v1::Job::Failure OfNode() {
    v1::Job::Failure failure = OfRank(-1, 0);
    Classify(&failure);
    failure.set_node_at_fault(true);
    return failure;
  }
  v1::Job job_;
};

TEST_F(NoOtherTest, PermanentErrorIsNotRetried) {
  EXPECT_EQ(Fail(Said(v1::ErrorClass::KIND_CONFIGURATION, true)),
            "another attempt would fail in the same way");
  EXPECT_EQ(job_.failure().cause(), v1::FAILURE_CAUSE_CONFIGURATION);
}

TEST_F(NoOtherTest, FinalCheckpointWithoutSpaceIsNotRetried) {
  EXPECT_THAT(Fail(Said(v1::ErrorClass::KIND_DISK), 100), ::testing::HasSubstr("free disk space"));
  EXPECT_EQ(job_.failure().cause(), v1::FAILURE_CAUSE_DISK);
}

v1::Job::Failure OfNodeOnly(v1::ErrorClass::Kind kind) {
  v1::Job::Failure failure = Said(kind);
  failure.mutable_error_class()->set_node_only(true);
  return failure;
}

TEST_F(NoOtherTest, WrongPathBeforeFirstStepIsNotRetried) {
  for (const auto kind : {v1::ErrorClass::KIND_DATA, v1::ErrorClass::KIND_CONFIGURATION}) {
    job_.set_attempt(0);
    job_.clear_failed_attempts();
    job_.clear_last_step();
    EXPECT_THAT(Fail(Said(kind)), ::testing::AllOf(::testing::HasSubstr("`fsdpctl retry j`"),
                                                   ::testing::HasSubstr("submit a new job")));
    EXPECT_EQ(Fail(OfRank(0), 3), "");
    EXPECT_EQ(Fail(Said(kind)), "") << "the file existed before";
  }
}

TEST_F(NoOtherTest, NodeOnlyErrorIsRetriedOnce) {
  for (const auto kind :
       {v1::ErrorClass::KIND_DATA, v1::ErrorClass::KIND_CONFIGURATION, v1::ErrorClass::KIND_DISK}) {
    job_.set_attempt(0);
    job_.clear_failed_attempts();
    EXPECT_EQ(Fail(OfNodeOnly(kind)), "");
    EXPECT_EQ(Fail(OfNodeOnly(kind)),
              "an earlier attempt failed in the same way on node a, and none completed a step");
  }
}

// As when a file was not copied to some nodes.
TEST_F(NoOtherTest, NodeOnlyErrorsAreRetriedOnOtherNodes) {
  const auto on = [](const char* node) {
    v1::Job::Failure failure = OfNodeOnly(v1::ErrorClass::KIND_CONFIGURATION);
    failure.set_node(node);
    return failure;
  };
  EXPECT_EQ(Fail(on("a")), "");
  EXPECT_EQ(Fail(on("b")), "");
  EXPECT_EQ(NodesToAvoid(job_), (std::set<std::string>{"a", "b"}));
  EXPECT_EQ(Fail(on("c")), "");
  EXPECT_NE(Fail(on("a")), "") << "there is no other node";
}

TEST_F(NoOtherTest, AttemptsBeforeARetryDoNotCount) {
  for (int attempt = 0; attempt < 2; ++attempt) Fail(OfNodeOnly(v1::ErrorClass::KIND_DATA));
  job_.set_drains_since_checkpoint(2);  // As after a retry.
  EXPECT_EQ(Fail(OfNodeOnly(v1::ErrorClass::KIND_DATA)), "");
  EXPECT_NE(Fail(OfNodeOnly(v1::ErrorClass::KIND_DATA)), "");
  EXPECT_EQ(job_.failed_attempts_size(), 4);
}

TEST_F(NoOtherTest, DrainInBetweenDoesNotCountAsAttempt) {
  EXPECT_EQ(Fail(OfNodeOnly(v1::ErrorClass::KIND_DATA)), "");
  v1::Job::Failure drained = OfRank(0);
  drained.set_drained(true);
  EXPECT_EQ(Fail(drained), "");
  EXPECT_NE(Fail(OfNodeOnly(v1::ErrorClass::KIND_DATA)), "");
  EXPECT_EQ(Fail(OfNode()), "");
  EXPECT_EQ(Fail(OfNodeOnly(v1::ErrorClass::KIND_DATA)), "");
}

TEST_F(NoOtherTest, MissingFileAfterFirstStepIsRetried) {
  EXPECT_EQ(Fail(OfRank(0), 250), "");
  for (int attempt = 0; attempt < 4; ++attempt)
    EXPECT_EQ(Fail(Said(attempt % 2 == 0 ? v1::ErrorClass::KIND_DATA : v1::ErrorClass::KIND_CONFIGURATION)),
              "");
  for (int attempt = 0; attempt < 9; ++attempt) EXPECT_EQ(Fail(Said(v1::ErrorClass::KIND_DATA)), "");
}

TEST_F(NoOtherTest, ThreeAttemptsWithoutProgressEndJobWithCheckpoints) {
  EXPECT_EQ(Fail(OfRank(0), 250), "");
  EXPECT_EQ(Fail(OfRank(1), 240), "");
  EXPECT_EQ(Fail(OfRank(0), 250),
            "3 attempts in a row committed no checkpoint and made no progress beyond step 250");
  EXPECT_EQ(job_.failure().cause(), v1::FAILURE_CAUSE_NO_PROGRESS);
  KeepFailedAttempt(&job_);
  ASSERT_EQ(job_.failed_attempts_size(), 3);
  EXPECT_EQ(job_.failed_attempts(2).cause(), v1::FAILURE_CAUSE_PROCESS) << "it keeps its own cause";
}

// The step was reported as 0, while the list of jobs had 10.
TEST_F(NoOtherTest, AttemptWithoutReportsIsAtItsStartStep) {
  job_.mutable_restored()->set_step(10);
  EXPECT_EQ(Fail(OfRank(0)), "");
  EXPECT_EQ(job_.failed_attempts(0).step(), 10);
  EXPECT_EQ(Fail(OfRank(0), 12), "");
  EXPECT_EQ(job_.failed_attempts(1).step(), 12);
}

TEST_F(NoOtherTest, LoadedCheckpointIsNotAStepOfTheJob) {
  job_.mutable_restored()->set_step(10);  // From checkpoint.load.
  EXPECT_NE(Fail(Said(v1::ErrorClass::KIND_DATA)), "");
}

TEST_F(NoOtherTest, AttemptWithMoreStepsIsProgress) {
  for (int64_t step = 10; step < 100; step += 10) EXPECT_EQ(Fail(OfRank(0), step), "");
}

TEST_F(NoOtherTest, AttemptsWithoutStepsAreNoProgress) {
  EXPECT_EQ(Fail(OfRank(0)), "");
  EXPECT_EQ(Fail(OfRank(0)), "");
  EXPECT_EQ(Fail(OfRank(0)), "3 attempts in a row committed no checkpoint and completed no step");
}

TEST_F(NoOtherTest, AttemptsThatFailedByNodeDoNotCount) {
  for (int attempt = 0; attempt < 9; ++attempt)
    EXPECT_EQ(Fail(attempt % 3 == 2 ? OfNode() : OfRank(0), 250), "") << attempt;
}

TEST_F(NoOtherTest, NoProgressRuleNeedsCheckpointsAndNoNewOne) {
  for (int attempt = 0; attempt < 6; ++attempt) {
    job_.set_attempts_before_checkpoint(attempt);  // Each one commits.
    if (job_.checkpoints().empty()) job_.add_checkpoints()->set_step(200);
    EXPECT_EQ(Fail(OfRank(0), 250), "");
  }
  job_ = v1::Job();
  for (int attempt = 0; attempt < 6; ++attempt) EXPECT_EQ(Fail(OfRank(0), 250), "");
}

TEST_F(NoOtherTest, IgnoresFailuresOfOlderCoordinators) {
  v1::Job::Failure old = OfRank(0);
  job_.set_attempt(1);
  EXPECT_EQ(WhyNoRetry(job_, &old), "");
}

TEST_F(NoOtherTest, RetainsNewestAttemptsWithTheirLastCause) {
  for (int attempt = 0; attempt < 20; ++attempt) Fail(OfRank(0), attempt);
  ASSERT_EQ(job_.failed_attempts_size(), kMaxFailedAttempts);
  EXPECT_EQ(job_.failed_attempts(0).attempt(), 5);
  job_.clear_last_step();  // As when it is queued again.
  job_.mutable_failure()->set_node("b");
  KeepFailedAttempt(&job_);
  ASSERT_EQ(job_.failed_attempts_size(), kMaxFailedAttempts);
  EXPECT_EQ(job_.failed_attempts(kMaxFailedAttempts - 1).node(), "b");
  EXPECT_EQ(job_.failed_attempts(kMaxFailedAttempts - 1).step(), 19);
}

TEST(FailurePolicy, RetryDelayDoublesToAMinuteAndIsDeterministic) {
  std::set<absl::Duration> waits;
  for (int attempt = 1; attempt <= 40; ++attempt) {
    const absl::Duration longest =
        std::min(absl::Seconds(1) * (int64_t{1} << (attempt - 1)), absl::Minutes(1));
    for (const char* id : {"tiny-aaaaaa", "tiny-aaaaab"}) {
      v1::Job job;
      job.set_id(id);
      job.set_attempt(attempt);
      EXPECT_LE(RetryDelay(job), longest);
      EXPECT_GE(RetryDelay(job), longest / 2 - absl::Milliseconds(10));
      EXPECT_EQ(RetryDelay(job), RetryDelay(v1::Job(job)));
      if (attempt > 7) waits.insert(RetryDelay(job));
    }
  }
  EXPECT_GT(waits.size(), 60u) << "jobs that failed together do not restart together";
  EXPECT_GT(*waits.rbegin() - *waits.begin(), absl::Seconds(20));
}

TEST(FailurePolicy, RetryDelayIsShortAfterDrainAndZeroForRewind) {
  v1::Job job;
  job.set_id("j");
  job.set_attempt(30);
  *job.mutable_failure() = OfRank(0);
  job.mutable_failure()->set_attempt(30);
  EXPECT_GT(RetryDelay(job), absl::Seconds(29));
  job.mutable_failure()->set_drained(true);
  EXPECT_LE(RetryDelay(job), absl::Seconds(1));
  job.mutable_failure()->set_refused(true);
  job.set_refused_launches(2);
  EXPECT_LE(RetryDelay(job), absl::Seconds(2));
  job.mutable_failure()->mutable_bad_step()->set_rewind(true);
  EXPECT_EQ(RetryDelay(job), absl::ZeroDuration());
}

TEST(FailurePolicy, AvoidsANodeThatMayBeTheCause) {
  v1::Job job;
  job.set_attempt(1);
  EXPECT_THAT(NodesToAvoid(job), ::testing::IsEmpty());
  *job.mutable_failure() = Said(v1::ErrorClass::KIND_DATA);
  job.mutable_failure()->set_attempt(1);
  Classify(job.mutable_failure());
  EXPECT_THAT(NodesToAvoid(job), ::testing::ElementsAre("a")) << "the file may be missing only there";
  job.set_attempt(2);
  EXPECT_THAT(NodesToAvoid(job), ::testing::IsEmpty()) << "the failure is of the previous attempt";
  *job.mutable_failure() = OfRank(0);
  job.mutable_failure()->set_attempt(2);
  Classify(job.mutable_failure());
  EXPECT_THAT(NodesToAvoid(job), ::testing::IsEmpty());
  job.mutable_failure()->set_node_at_fault(true);
  EXPECT_THAT(NodesToAvoid(job), ::testing::ElementsAre("a"));
  *job.mutable_failure() = OfRank(0, kRefusedExitCode);
  job.mutable_failure()->set_attempt(2);
  Classify(job.mutable_failure());
  EXPECT_THAT(NodesToAvoid(job), ::testing::ElementsAre("a"))
      << "its slots may stay occupied for all attempts";
  EXPECT_FALSE(job.failure().node_at_fault()) << "it is not cordoned for that";
}

}  // namespace
}  // namespace fsdpd
