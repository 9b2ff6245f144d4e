#include "coordinator/job/job_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"
#include "coordinator/job/job_machine.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;

class JobCheckpointsTest : public testing::Test {
 protected:
  JobCheckpointsTest() {
    job_.set_state(v1::JOB_STATE_QUEUED);
    job_.mutable_spec()->mutable_train()->set_steps(1000);
    job_.mutable_spec()->mutable_restart()->set_max_attempts(3);
    Next();
  }
  // Starts the next attempt.
  void Next() {
    if (job_.state() == v1::JOB_STATE_RUNNING) {
      Change(JobEvent::kFail);
      Change(JobEvent::kRetry);
    }
    Change(JobEvent::kLaunch);
    Change(JobEvent::kReady);
    job_.clear_events();
  }
  void Change(JobEvent event) { ASSERT_TRUE(Apply(event, "why", now_, &job_).ok()); }

  static v1::SavedCheckpoint Saved(int64_t step, const std::string& error = "") {
    v1::SavedCheckpoint saved;
    saved.set_step(step);
    saved.set_path("/runs/7/iter_" + std::to_string(step));
    saved.set_bytes(error.empty() ? 1536 * kMiB : 0);
    saved.set_seconds(3.125);
    saved.set_error(error);
    return saved;
  }
  bool Commit(int64_t step) { return TakeSaved(Saved(step), now_, &job_); }
  bool Fail(int64_t step) { return TakeSaved(Saved(step, "No space left on device"), now_, &job_); }
  bool ResumeAfter(int64_t step) {
    v1::RestoredCheckpoint restored;
    restored.set_step(step);
    restored.set_path("/runs/7/iter_" + std::to_string(step));
    return TakeStart(&restored, now_, &job_);
  }

  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    for (const v1::SavedCheckpoint& each : job_.checkpoints()) steps.push_back(each.step());
    return steps;
  }
  std::vector<std::string> Events() {
    std::vector<std::string> words;
    for (const v1::Job::Event& event : job_.events()) words.push_back(event.message());
    return words;
  }

  absl::Time now_ = absl::FromUnixSeconds(100);
  v1::Job job_;
};

// Attempt 1 commits and rewinds, so does attempt 2 without a commit, and attempt 3 fails.
TEST_F(JobCheckpointsTest, RewoundAttemptsDoNotCount) {
  Commit(100);
  for (int attempt = 2; attempt <= 3; ++attempt) {
    job_.set_rewinds_since_checkpoint(attempt - 1);
    Next();
    EXPECT_TRUE(ResumeAfter(100)) << "attempt " << attempt << " resumed";
    EXPECT_EQ(CountedAttempts(job_), 1);
    EXPECT_EQ(AttemptsAllowed(job_), attempt + 2);
  }
  Next();
  EXPECT_EQ(CountedAttempts(job_), 2);
  EXPECT_EQ(AttemptsAllowed(job_), 5);
  Commit(200);
  EXPECT_EQ(job_.rewinds_since_checkpoint(), 0);
  EXPECT_EQ(CountedAttempts(job_), 1);
}

// Attempt 1 rewinds. Attempt 2 commits, unreported, and ends with a failure or a bad step; attempt 3 finds
// the commit.
TEST_F(JobCheckpointsTest, RewindsBeforeAnUnreportedCommitCountOnce) {
  for (const bool rewound : {false, true}) {
    SCOPED_TRACE(rewound);
    job_.clear_checkpoints();
    job_.set_attempt(2);
    job_.set_rewinds_since_checkpoint(rewound ? 2 : 1);
    job_.mutable_failure()->set_attempt(2);
    job_.mutable_failure()->mutable_bad_step()->set_rewind(rewound);
    Next();
    EXPECT_TRUE(ResumeAfter(100));
    EXPECT_EQ(CountedAttempts(job_), rewound ? 1 : 2);
  }
}

// Attempt 1 commits and is paused, and those after it commit nothing.
TEST_F(JobCheckpointsTest, PausedAttemptWithACommitIsNotInVain) {
  Commit(100);
  ExcludeAttempt(&job_);
  for (int in_vain = 1; in_vain <= 3; ++in_vain) {
    Next();
    EXPECT_EQ(CountedAttempts(job_), in_vain);
    EXPECT_EQ(AttemptsWithoutProgress(job_), in_vain);
  }
  Commit(200);
  EXPECT_EQ(AttemptsWithoutProgress(job_), 0);
  Next();
  EXPECT_EQ(AttemptsWithoutProgress(job_), 1) << "it counts itself";
}

// Attempt 1 is paused, and its last commit is found by attempt 2.
TEST_F(JobCheckpointsTest, RemembersPauseBeforeAnUnreportedCommit) {
  ExcludeAttempt(&job_);
  Next();
  EXPECT_TRUE(ResumeAfter(100));
  EXPECT_EQ(CountedAttempts(job_), 1);
  EXPECT_EQ(AttemptsWithoutProgress(job_), 1);
}

TEST_F(JobCheckpointsTest, FirstCommitIsAnEventAndEachIsAChange) {
  const int64_t revision = job_.revision();
  EXPECT_TRUE(Commit(100));
  EXPECT_TRUE(Commit(200));
  EXPECT_THAT(Steps(), ElementsAre(100, 200));
  EXPECT_EQ(job_.checkpoints(1).path(), "/runs/7/iter_200");
  EXPECT_EQ(job_.revision(), revision + 2);
  EXPECT_EQ(job_.reason(), "why") << "checkpoints do not change the reason";
  EXPECT_THAT(Events(), ElementsAre("checkpoint of step 100 committed (1.50 GiB in 3 s)"));
}

TEST_F(JobCheckpointsTest, IgnoresRepeatedReports) {
  Commit(100);
  Fail(200);
  Commit(300);
  Fail(400);
  const std::string before = job_.SerializeAsString();
  EXPECT_FALSE(Commit(100));
  EXPECT_FALSE(Fail(200));
  EXPECT_FALSE(Commit(300));
  EXPECT_FALSE(Fail(400));
  EXPECT_EQ(job_.SerializeAsString(), before);
}

TEST_F(JobCheckpointsTest, RetainsTheNewest) {
  for (int step = 1; step <= kMaxKnownCheckpoints + 2; ++step) Commit(step);
  EXPECT_EQ(job_.checkpoints_size(), kMaxKnownCheckpoints);
  EXPECT_EQ(job_.checkpoints(0).step(), 3);
  EXPECT_EQ(job_.events_size(), 1);
}

TEST_F(JobCheckpointsTest, FirstFailedSaveAndNextCommitAreEvents) {
  Commit(100);
  job_.clear_events();
  Fail(200);
  Fail(300);
  EXPECT_EQ(job_.failed_checkpoint().step(), 300) << "the newest";
  EXPECT_THAT(Steps(), ElementsAre(100));
  EXPECT_EQ(job_.attempts_before_checkpoint(), 0);
  Commit(400);
  EXPECT_FALSE(job_.has_failed_checkpoint());
  Commit(500);
  EXPECT_THAT(
      Events(),
      ElementsAre("checkpoint of step 200 could not be written: No space left on device; training continues",
                  "checkpoint of step 400 committed (1.50 GiB in 3 s)"));
}

TEST_F(JobCheckpointsTest, ExportIsNotACheckpoint) {
  Commit(1000);
  job_.clear_events();
  v1::SavedCheckpoint exported = Saved(1000);
  exported.set_format("hf");
  exported.set_path("/runs/7/hf");
  exported.set_unix_nanos(5);
  const int64_t revision = job_.revision();
  EXPECT_TRUE(TakeSaved(exported, now_, &job_));
  EXPECT_FALSE(TakeSaved(exported, now_, &job_)) << "repeated report";
  EXPECT_EQ(job_.revision(), revision + 1);
  EXPECT_THAT(Steps(), ElementsAre(1000));
  EXPECT_EQ(job_.exported().path(), "/runs/7/hf");
  job_.mutable_resolved()->mutable_precision()->set_compute(v1::DTYPE_FP32);
  exported.set_error("the disk is full");
  exported.set_unix_nanos(6);
  EXPECT_TRUE(TakeSaved(exported, now_, &job_));
  EXPECT_FALSE(job_.has_failed_checkpoint()) << "nothing of the job is lost";
  job_.mutable_resolved()->mutable_precision()->set_compute(v1::DTYPE_BF16);
  exported.set_unix_nanos(7);
  EXPECT_TRUE(TakeSaved(exported, now_, &job_));
  EXPECT_THAT(
      Events(),
      ElementsAre("Hugging Face directory /runs/7/hf written (1.50 GiB in 3 s)",
                  "Hugging Face directory /runs/7/hf could not be written: the disk is full; export "
                  "it with `fsdpctl ckpt convert /runs/7/iter_1000 /runs/7/hf --to hf --dtype float32`",
                  "Hugging Face directory /runs/7/hf could not be written: the disk is full; export "
                  "it with `fsdpctl ckpt convert /runs/7/iter_1000 /runs/7/hf --to hf`"));
  job_.clear_events();
  job_.mutable_spec()->mutable_train()->mutable_lora()->set_rank(8);
  for (const char* format : {"hf", "peft"}) {
    exported.set_format(format);
    exported.set_unix_nanos(exported.unix_nanos() + 1);
    EXPECT_TRUE(TakeSaved(exported, now_, &job_));
  }
  EXPECT_THAT(Events(),
              ElementsAre("Hugging Face directory /runs/7/hf could not be written: the disk is full; export "
                          "it with `fsdpctl ckpt merge /runs/7/iter_1000 /runs/7/hf`",
                          "PEFT directory /runs/7/hf could not be written: the disk is full; export it with "
                          "`fsdpctl ckpt convert /runs/7/iter_1000 /runs/7/hf --to peft`"));
}

TEST_F(JobCheckpointsTest, ReportsThatTrainingContinuesOnlyIfItDoes) {
  Fail(1000);
  EXPECT_THAT(Events(), ElementsAre("checkpoint of step 1000 could not be written: No space left on device"));
}

TEST_F(JobCheckpointsTest, CountsAttemptsFromTheLastCommit) {
  EXPECT_EQ(AttemptsAllowed(job_), 3);
  Next();
  EXPECT_EQ(CountedAttempts(job_), 2);
  Commit(100);
  EXPECT_EQ(CountedAttempts(job_), 1);
  EXPECT_EQ(AttemptsAllowed(job_), 4) << "this one and two more";
  Next();
  EXPECT_EQ(CountedAttempts(job_), 2);
  Fail(200);
  EXPECT_EQ(AttemptsAllowed(job_), 4);
}

TEST_F(JobCheckpointsTest, RefusedAttemptsNeverCount) {
  job_.set_refused_launches(1);  // Attempt 1.
  Next();
  Commit(100);
  EXPECT_EQ(CountedAttempts(job_), 1);
  EXPECT_EQ(AttemptsAllowed(job_), 4) << "2, 3 and 4";
  Next();
  job_.set_refused_launches(2);  // Attempt 3.
  Next();
  EXPECT_EQ(CountedAttempts(job_), 2);
  EXPECT_EQ(AttemptsAllowed(job_), 5) << "2, 4 and 5";
  Commit(200);
  EXPECT_EQ(AttemptsAllowed(job_), 6) << "4, 5 and 6";
}

TEST_F(JobCheckpointsTest, AttemptReportsItsStartAndSkippedSamplesOnce) {
  Commit(100);
  Commit(200);
  Next();
  EXPECT_FALSE(job_.has_restored());
  v1::RestoredCheckpoint restored;
  restored.set_step(100);
  restored.set_path("/runs/7/iter_100");
  restored.add_skipped_checkpoints("/runs/7/iter_200: __1_0.distcp: checksum does not match");
  restored.add_skipped_checkpoints("/runs/7/iter_300: no .metadata");
  EXPECT_TRUE(TakeStart(&restored, now_, &job_));
  EXPECT_FALSE(TakeStart(&restored, now_, &job_));
  EXPECT_EQ(job_.restored().step(), 100);
  EXPECT_THAT(Steps(), ElementsAre(100)) << "skipped checkpoints must not be resumed from";
  EXPECT_THAT(Events(),
              ElementsAre("attempt 2 resumes after step 100 (/runs/7/iter_100); skipped: /runs/7/iter_200: "
                          "__1_0.distcp: checksum does not match; /runs/7/iter_300: no .metadata"));
  EXPECT_TRUE(Commit(200)) << "again, in this attempt";
  EXPECT_FALSE(TakeStart(&restored, now_, &job_));
  EXPECT_THAT(Steps(), ElementsAre(100, 200));
}

// An agent of an older release does not pass known checkpoints to its ranks.
TEST_F(JobCheckpointsTest, ReportsFreshStartDespiteCheckpoints) {
  EXPECT_FALSE(TakeStart(nullptr, now_, &job_)) << "the first attempt has no checkpoint";
  Commit(100);
  Next();
  EXPECT_TRUE(TakeStart(nullptr, now_, &job_));
  EXPECT_FALSE(TakeStart(nullptr, now_, &job_));
  EXPECT_THAT(Steps(), IsEmpty());
  EXPECT_THAT(Events(), ElementsAre("attempt 2 starts at step 1: it found no checkpoint of the job (the "
                                    "newest was step 100, /runs/7/iter_100)"));
  EXPECT_TRUE(Commit(50));
  EXPECT_FALSE(TakeStart(nullptr, now_, &job_)) << "repeated report after a commit";
  EXPECT_THAT(Steps(), ElementsAre(50));
}

TEST_F(JobCheckpointsTest, RecordsUnreportedCommitFromTheRestoreOfTheNextAttempt) {
  for (const int64_t step : {100, 200, 300, 400}) {
    Next();
    EXPECT_TRUE(ResumeAfter(step)) << "each attempt commits once, then fails";
    EXPECT_EQ(CountedAttempts(job_), 2) << "the one that committed, and this one";
  }
  EXPECT_THAT(Steps(), ElementsAre(100, 200, 300, 400));
  EXPECT_EQ(job_.checkpoints(3).path(), "/runs/7/iter_400");
  EXPECT_EQ(job_.checkpoints(3).unix_nanos(), absl::ToUnixNanos(now_));
  EXPECT_FALSE(ResumeAfter(400));
  EXPECT_TRUE(Commit(500));
  EXPECT_EQ(CountedAttempts(job_), 1);
  for (int64_t step = 600; step <= 2500; step += 100) {
    Next();
    ResumeAfter(step);
  }
  EXPECT_EQ(job_.checkpoints_size(), kMaxKnownCheckpoints);
}

TEST_F(JobCheckpointsTest, LoadedCheckpointIsNotACommitOfTheJob) {
  job_.mutable_spec()->mutable_checkpoint()->set_load("/runs/6");
  for (const int attempt : {1, 2}) {
    EXPECT_TRUE(ResumeAfter(100));
    EXPECT_THAT(Steps(), IsEmpty());
    EXPECT_EQ(CountedAttempts(job_), attempt);
    Next();
  }
}

TEST_F(JobCheckpointsTest, RestoredParametersAreNotAStepToResumeFrom) {
  EXPECT_TRUE(ResumeAfter(0));
  EXPECT_THAT(Events(), ElementsAre("attempt 1 starts at step 1 with the parameters of a checkpoint "
                                    "(/runs/7/iter_0)"));
}

TEST_F(JobCheckpointsTest, NextAttemptClearsStartAndFailureOfTheLast) {
  ResumeAfter(100);
  Fail(200);
  Next();
  EXPECT_FALSE(job_.has_restored());
  EXPECT_FALSE(job_.has_failed_checkpoint());
  EXPECT_TRUE(Fail(200)) << "its own";
}

v1::StepReport Step(int64_t step, double loss, int64_t mallocs) {
  v1::StepReport report;
  report.set_step(step);
  report.set_loss(loss);
  report.mutable_memory()->set_device_mallocs(mallocs);
  return report;
}

TEST_F(JobCheckpointsTest, ResumedAttemptRetainsFirstLossAndWarmsUpForOneStep) {
  TakeStep(Step(1, 5.5, 40), &job_);
  Commit(100);
  Next();
  ResumeAfter(100);
  TakeStep(Step(101, 2.5, 40), &job_);
  TakeStep(Step(102, 2.5, 50), &job_);
  EXPECT_EQ(job_.first_loss(), 5.5);
  EXPECT_EQ(job_.steady_device_mallocs(), 0);
  TakeStep(Step(103, 2.5, 53), &job_);
  EXPECT_EQ(job_.steady_device_mallocs(), 3);
  EXPECT_EQ(job_.initial_checkpoint_step(), 0) << "its own checkpoint";
  Next();
  EXPECT_FALSE(job_.has_last_step());
  EXPECT_EQ(job_.previous_last_step().step(), 103) << "its loss is retained";
  TakeStart(nullptr, now_, &job_);
  TakeStep(Step(1, 5.25, 40), &job_);
  EXPECT_EQ(job_.first_loss(), 5.25) << "it started from scratch";
}

// With a second attempt, users could not see at which step the job had started.
TEST_F(JobCheckpointsTest, RetainsTheFirstStepOfTheJob) {
  v1::RestoredCheckpoint restored;
  restored.set_step(120);
  restored.set_path("/runs/6/iter_120");
  EXPECT_TRUE(TakeStart(&restored, now_, &job_));
  Commit(150);
  Next();
  ResumeAfter(150);
  EXPECT_EQ(job_.initial_checkpoint_step(), 120);
}

TEST_F(JobCheckpointsTest, AttemptsWhoseNodeLeftDoNotCountUntilACommit) {
  Change(JobEvent::kFail);
  Change(JobEvent::kRetry);
  job_.set_drains_since_checkpoint(1);
  Next();
  EXPECT_EQ(CountedAttempts(job_), 1);
  EXPECT_EQ(AttemptsAllowed(job_), 4);
  Commit(10);
  EXPECT_EQ(job_.drains_since_checkpoint(), 0);
  EXPECT_EQ(CountedAttempts(job_), 1) << "the one that committed";
  EXPECT_EQ(AttemptsAllowed(job_), 4);
}

// Its rank 0 committed during shutdown, while the coordinator was not connected.
TEST_F(JobCheckpointsTest, UnreportedCommitDuringDrainResetsTheCount) {
  for (int attempt = 1; attempt <= 2; ++attempt) {
    job_.mutable_failure()->set_attempt(attempt);
    job_.mutable_failure()->set_drained(true);
    job_.set_drains_since_checkpoint(attempt);
    Next();
  }
  EXPECT_EQ(CountedAttempts(job_), 1);
  ResumeAfter(10);
  EXPECT_EQ(job_.drains_since_checkpoint(), 1);
  EXPECT_EQ(CountedAttempts(job_), 1);
}

}  // namespace
}  // namespace fsdpd
