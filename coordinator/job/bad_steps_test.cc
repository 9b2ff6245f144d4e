#include "coordinator/job/bad_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/job/job_machine.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Batches of 12 samples, with occasional checkpoints.
class BadStepsTest : public testing::Test {
 protected:
  BadStepsTest() {
    job_.set_state(v1::JOB_STATE_RUNNING);
    job_.set_attempt(1);
    v1::Train* train = job_.mutable_resolved()->mutable_train();
    train->set_steps(1000);
    train->set_global_batch(12);
    train->mutable_on_nonfinite()->set_max(3);
    train->mutable_on_spike()->set_max(2);
  }
  static v1::BadStep Bad(int64_t step, int64_t first_sample,
                         v1::BadStepKind kind = v1::BAD_STEP_KIND_NONFINITE) {
    v1::BadStep bad;
    bad.set_step(step);
    bad.set_kind(kind);
    bad.set_loss(2.5);
    bad.set_grad_norm(8);
    bad.set_threshold(kind == v1::BAD_STEP_KIND_SPIKE ? 4 : 0);
    bad.set_first_sample(first_sample);
    bad.set_end_sample(first_sample + 12);
    return bad;
  }
  bool Skip(const v1::BadStep& bad) {
    v1::StepReport report;
    report.set_step(bad.step());
    *report.mutable_bad_step() = bad;
    return TakeSkipped(report, absl::FromUnixSeconds(100), &job_);
  }
  // The current attempt ended because of the step, and requests a rewind.
  void EndBy(v1::BadStep bad) {
    bad.set_rewind(true);
    job_.mutable_failure()->set_attempt(job_.attempt());
    *job_.mutable_failure()->mutable_bad_step() = bad;
    ASSERT_TRUE(WantsRewind(job_));
  }
  void NextAttempt(int64_t after_step) {
    Rewind(&job_);
    job_.set_attempt(job_.attempt() + 1);
    job_.mutable_restored()->set_step(after_step);
  }
  void Commit(int64_t step) { job_.add_checkpoints()->set_step(step); }
  std::vector<std::pair<int64_t, int64_t>> PassedOver() {
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (const v1::SampleRange& range : job_.skipped_samples())
      ranges.emplace_back(range.first(), range.end());
    return ranges;
  }
  using Range = std::pair<int64_t, int64_t>;

  v1::Job job_;
};

TEST_F(BadStepsTest, SkippedStepIsCountedAndAnEvent) {
  EXPECT_FALSE(TakeSkipped(v1::StepReport(), absl::Now(), &job_));
  EXPECT_EQ(job_.revision(), 0);
  EXPECT_TRUE(Skip(Bad(4, 36)));
  EXPECT_TRUE(Skip(Bad(9, 96, v1::BAD_STEP_KIND_SPIKE)));
  EXPECT_EQ(job_.revision(), 2);
  EXPECT_EQ(job_.skipped_steps(), 2);
  ASSERT_EQ(job_.events_size(), 2);
  EXPECT_EQ(job_.events(0).message(),
            "step 4 was skipped: not finite, loss 2.5 and gradient norm 8 (samples 36 to 47)");
  EXPECT_EQ(job_.events(1).message(),
            "step 9 was skipped: a spike, its gradient norm 8 is above 4 (samples 96 to 107)");
  EXPECT_EQ(job_.reason(), "") << "skipped steps do not change the reason";
}

TEST_F(BadStepsTest, ManySkippedStepsKeepOtherEvents) {
  for (int64_t step = 1; step <= 500; ++step) EXPECT_TRUE(Skip(Bad(step, 12 * step - 12)));
  EXPECT_EQ(job_.skipped_steps(), 500);
  ASSERT_EQ(job_.bad_steps_size(), kMaxBadSteps);
  EXPECT_EQ(job_.bad_steps(kMaxBadSteps - 1).step(), 500);
  EXPECT_EQ(job_.events_size(), kMaxBadSteps);
}

TEST_F(BadStepsTest, OtherFailuresDoNotRequestARewind) {
  EXPECT_FALSE(WantsRewind(job_));
  EndBy(Bad(4, 36));
  job_.set_attempt(2);
  EXPECT_FALSE(WantsRewind(job_));
  job_.set_attempt(1);
  job_.mutable_failure()->mutable_bad_step()->set_rewind(false);  // It requests a stop.
  EXPECT_FALSE(WantsRewind(job_));
}

TEST_F(BadStepsTest, SkipsSamplesFromNewestCheckpointToTheStep) {
  EndBy(Bad(8, 84));
  Rewind(&job_);
  EXPECT_THAT(PassedOver(), ElementsAre(Range(0, 96))) << "there is no checkpoint";
  job_.clear_skipped_samples();
  Commit(3);
  Commit(6);
  Rewind(&job_);
  EXPECT_THAT(PassedOver(), ElementsAre(Range(72, 96))) << "steps 7 and 8";
  EXPECT_EQ(job_.rewinds(), 2);
  EXPECT_THAT(job_.bad_steps(), SizeIs(2));
}

// An earlier run with another batch size: 50 samples in the 5 steps that it loads.
TEST_F(BadStepsTest, RewindsToTheLoadedCheckpoint) {
  job_.mutable_restored()->set_step(5);
  EndBy(Bad(8, 50 + 24));
  Rewind(&job_);
  EXPECT_THAT(PassedOver(), ElementsAre(Range(50, 86)));
}

// The second attempt began at step 7 with sample 96.
TEST_F(BadStepsTest, MergesAdjacentRanges) {
  Commit(6);
  EndBy(Bad(8, 84));
  NextAttempt(6);
  EndBy(Bad(9, 96 + 24));
  EXPECT_THAT(WhyNoRewind(job_), IsEmpty());
  NextAttempt(6);
  EXPECT_THAT(PassedOver(), ElementsAre(Range(72, 132)));
  Commit(20);
  EndBy(Bad(21, 500));
  NextAttempt(20);
  EXPECT_THAT(PassedOver(), ElementsAre(Range(72, 132), Range(500, 512)));
}

TEST_F(BadStepsTest, LimitsTheNumberOfRewinds) {
  for (const int64_t step : {10, 20}) {
    Commit(step);
    EndBy(Bad(step + 5, 1000 * step));
    EXPECT_THAT(WhyNoRewind(job_), IsEmpty());
    NextAttempt(step);
  }
  EndBy(Bad(30, 99999, v1::BAD_STEP_KIND_SPIKE));
  EXPECT_EQ(WhyNoRewind(job_), "the job has rewound 2 times (train.on_spike.max is 2)");
  EndBy(Bad(30, 99999));
  EXPECT_THAT(WhyNoRewind(job_), IsEmpty()) << "max of the other is 3";
}

TEST_F(BadStepsTest, DoesNotRewindIfTheNextStepIsBadToo) {
  Commit(6);
  EndBy(Bad(8, 84));
  NextAttempt(6);
  EndBy(Bad(7, 96));
  EXPECT_THAT(WhyNoRewind(job_), HasSubstr("skipped samples 72 to 95, and the first step after them is bad"));
}

class CountedStepsTest : public BadStepsTest {
 protected:
  void Step(int64_t step, bool skipped) {
    v1::StepReport report;
    report.set_step(step);
    if (skipped) report.mutable_bad_step()->set_step(step);
    TakeCounted(report, &job_);
  }
  void End(int64_t last, int64_t first_counted) {
    v1::RankExit exit;
    exit.set_last_step(last);
    exit.set_first_counted_step(first_counted);
    TakeCounted(exit, &job_);
  }
  void Requeue(int64_t step, bool own = true) {
    job_.mutable_restored()->set_step(step);
    BeginCounting(step, own, &job_);
  }
};

TEST_F(CountedStepsTest, NothingCountedIfAllAttemptsSkippedAllSteps) {
  End(600, 0);
  EXPECT_FALSE(NothingCounted(job_));
  Requeue(500);
  End(1000, 0);
  EXPECT_TRUE(NothingCounted(job_));
  End(1000, 0);  // Repeated report.
  EXPECT_TRUE(NothingCounted(job_));
  EXPECT_THAT(WhyNothingCounted(job_), HasSubstr("none of 1000 steps was applied"));
}

TEST_F(CountedStepsTest, RewindForgetsStepsAfterTheCheckpointOnly) {
  End(600, 501);
  Requeue(500);
  End(1000, 0);
  EXPECT_TRUE(NothingCounted(job_)) << "step 501 was repeated";
  job_.clear_restored();
  End(600, 499);
  Requeue(500);
  End(1000, 0);
  EXPECT_FALSE(NothingCounted(job_));
}

TEST_F(CountedStepsTest, ReportedStepCountsWithoutAnExit) {
  End(600, 0);
  Requeue(500);
  Step(501, true);
  Step(502, false);  // Then its node is lost.
  Requeue(510);
  End(1000, 0);
  EXPECT_FALSE(NothingCounted(job_));
}

TEST_F(CountedStepsTest, UnknownStepsCount) {
  Requeue(500);  // An attempt without a reported exit.
  End(1000, 0);
  EXPECT_FALSE(NothingCounted(job_));
  job_.clear_restored();
  End(0, 0);
  EXPECT_FALSE(NothingCounted(job_));
}

TEST_F(CountedStepsTest, IgnoresStepsOfAnotherJob) {
  Requeue(500, /*own=*/false);
  End(1000, 0);
  EXPECT_TRUE(NothingCounted(job_));
}

}  // namespace
}  // namespace fsdpd
