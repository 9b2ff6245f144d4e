// Checkpoints reported by agents, and the value of attempts that resume from them.
#include <absl/strings/match.h>

#include "base/log.h"
#include "coordinator/reconcile/reconciler.h"
#include "coordinator/request/job_etag.h"
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class ReconcilerCheckpointTest : public ReconcilerCase {
 protected:
  void TearDown() override { TakeLog(nullptr); }
  void Saved(const std::string& node, int64_t step, int attempt = 1, int rank = 0,
             const std::string& error = "") {
    v1::RankUpdate update = Update("j", rank, attempt);
    update.mutable_saved()->set_step(step);
    update.mutable_saved()->set_path("/runs/7/iter_" + std::to_string(step));
    update.mutable_saved()->set_error(error);
    reconciler_->OnReport(node, update, 0);
    reconciler_->RunOnce();
  }
  void ReadyAfter(const std::string& node, int64_t step, int attempt) {
    v1::RankUpdate update = Update("j", 0, attempt);
    update.mutable_ready()->mutable_restored()->set_step(step);
    update.mutable_ready()->mutable_restored()->set_path("/runs/7/iter_" + std::to_string(step));
    reconciler_->OnReport(node, update, 0);
    reconciler_->RunOnce();
  }
  void Step(const std::string& node, int64_t step, int attempt) {
    v1::RankUpdate update = Update("j", 0, attempt);
    update.mutable_step()->set_step(step);
    reconciler_->OnReport(node, update, 0);
    reconciler_->RunOnce();
  }
  // A bad step of rank 0 that rewinds the job.
  void EndByBadStep(const std::string& node, int64_t step, int64_t first_sample, int attempt) {
    v1::RankUpdate update = Update("j", 0, attempt);
    update.mutable_exit()->set_exit_code(1);
    v1::BadStep* bad = update.mutable_exit()->mutable_bad_step();
    bad->set_step(step);
    bad->set_kind(v1::BAD_STEP_KIND_SPIKE);
    bad->set_first_sample(first_sample);
    bad->set_end_sample(first_sample + 12);
    bad->set_rewind(true);
    reconciler_->OnReport(node, update, 0);
    reconciler_->RunOnce();
  }
  // Fails the attempt, and launches the next one after its delay.
  void FailAttempt(int attempt) {
    Exit("a", "j", 0, 1, attempt);
    Stopped("a", "j", attempt);
  }
  void StartSavingOn(const std::string& node, int max_attempts, int64_t steps = 1000000) {
    plan_ = [steps](const v1::JobSpec& spec, int64_t) {
      Plan plan;
      plan.resolved = WithDefaults(spec, nullptr);
      plan.resolved.mutable_train()->set_steps(steps);
      plan.resolved.mutable_checkpoint()->set_dir("/runs/7");
      return plan;
    };
    Attach(node, 1);
    Submit("j", 1, 1, max_attempts);
    Ready(node, "j", 0);
  }
};

// One batch of an agent may contain both: a tick judges after it has processed all of them.
TEST_F(ReconcilerCheckpointTest, JobWithCheckpointsRunsBeforeFirstSave) {
  StartSavingOn("a", 3);
  FailAttempt(1);
  Advance(absl::Minutes(1));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  v1::RankUpdate ready = Update("j", 0, 2);
  ready.mutable_ready();
  reconciler_->OnReport("a", ready, 0);
  Saved("a", 12, 2);
  const v1::Job job = Job("j");
  EXPECT_EQ(job.state(), v1::JOB_STATE_RUNNING);
  const int last = job.events_size() - 1;
  EXPECT_EQ(job.events(last).kind(), v1::EVENT_KIND_CHECKPOINT);
  EXPECT_EQ(job.events(last - 1).kind(), v1::EVENT_KIND_READY);
}

// A node's certificate suffices to report them. Regression: each was a line of the coordinator's log.
TEST_F(ReconcilerCheckpointTest, InventedCheckpointsDoNotFillLog) {
  StartSavingOn("a", 1);
  std::vector<std::string> lines;
  TakeLog([&](Severity, absl::string_view line) {
    if (absl::StartsWith(line, "checkpoint ") || absl::StartsWith(line, "step skipped "))
      lines.emplace_back(line);
  });
  for (int64_t step = 1; step <= 1000; ++step) Saved("a", step);
  EXPECT_EQ(lines.size(), 1u);
  Advance(absl::Seconds(10));
  Saved("a", 1001);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[1], HasSubstr("step=1001 seconds=0.0 omitted=999 "));
  v1::RankUpdate skipped = Update("j", 0);
  skipped.mutable_step()->mutable_bad_step();
  for (int64_t step = 1; step <= 1000; ++step) {
    skipped.mutable_step()->set_step(step);
    reconciler_->OnReport("a", skipped, 0);
    reconciler_->RunOnce();
  }
  EXPECT_EQ(lines.size(), 3u);
}

// Regression: each was an event of the job.
TEST_F(ReconcilerCheckpointTest, AcceptsOneOfManyInventedExports) {
  StartSavingOn("a", 1);
  const int64_t events = Job("j").event_count();
  v1::RankUpdate exported = Update("j", 0);
  exported.mutable_saved()->set_format("hf");
  exported.mutable_saved()->set_step(1000000);
  for (int64_t date = 1; date <= 100; ++date) {
    exported.mutable_saved()->set_unix_nanos(date);
    reconciler_->OnReport("a", exported, 0);
    reconciler_->RunOnce();
  }
  EXPECT_EQ(Job("j").event_count(), events + 1);
}

// Regression: the job would resume from a step that it never reached, and its own later checkpoints were
// dropped as old.
TEST_F(ReconcilerCheckpointTest, RejectsCheckpointAfterLastStep) {
  StartSavingOn("a", 1, /*steps=*/20);
  std::vector<std::string> warnings;
  TakeLog([&](Severity severity, absl::string_view line) {
    if (severity == Severity::kWarning) warnings.emplace_back(line);
  });
  const int64_t revision = Job("j").revision();
  for (int64_t step = 21; step < 1021; ++step) Saved("a", step);
  EXPECT_EQ(Job("j").revision(), revision);
  EXPECT_EQ(RefusedFromAgents("rank"), 1000);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0], "rejected a checkpoint of an invalid step node=a job=j attempt=1 step=21");
  Saved("a", 20);
  EXPECT_EQ(Job("j").checkpoints_size(), 1);
}

// Regression: each dropped every checkpoint of the job.
TEST_F(ReconcilerCheckpointTest, RejectsCheckpointBeforeFirstStep) {
  StartSavingOn("a", /*max_attempts=*/3);
  Saved("a", 10);
  FailAttempt(1);
  Advance(absl::Minutes(1));
  ReadyAfter("a", 10, 2);
  for (const int64_t step : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    Saved("a", step, 2);
    ASSERT_EQ(Job("j").checkpoints_size(), 1) << step;
    EXPECT_EQ(Job("j").checkpoints(0).step(), 10);
  }
  EXPECT_EQ(RefusedFromAgents("rank"), 3);
}

// Regression: the job had a checkpoint of that step from then on, and its real checkpoints were rejected.
TEST_F(ReconcilerCheckpointTest, RejectsStartFromImpossibleCheckpoint) {
  StartSavingOn("a", /*max_attempts=*/3, /*steps=*/20);
  Saved("a", 10);
  FailAttempt(1);
  Advance(absl::Minutes(1));
  std::vector<std::string> warnings;
  TakeLog([&](Severity severity, absl::string_view line) {
    if (severity == Severity::kWarning) warnings.emplace_back(line);
  });
  for (const int64_t step : {int64_t{21}, INT64_MAX, int64_t{-1}}) {
    ReadyAfter("a", step, 2);
    EXPECT_FALSE(Job("j").has_restored()) << step;
    ASSERT_EQ(Job("j").checkpoints_size(), 1) << step;
    EXPECT_EQ(Job("j").checkpoints(0).step(), 10);
  }
  EXPECT_EQ(RefusedFromAgents("rank"), 3);
  EXPECT_EQ(warnings.size(), 1u);
  ReadyAfter("a", 20, 2);
  EXPECT_EQ(Job("j").restored().step(), 20);
}

// Regression: they were omitted like repeated lines of successful saves.
TEST_F(ReconcilerCheckpointTest, LogsFailedSaveAndExportAfterASave) {
  StartSavingOn("a", 1);
  std::vector<std::string> lines;
  TakeLog([&](Severity, absl::string_view line) {
    if (absl::StartsWith(line, "checkpoint ")) lines.emplace_back(line);
  });
  Saved("a", 1);
  for (int64_t step = 2; step <= 100; ++step) Saved("a", step, 1, 0, "No space left on device");
  v1::RankUpdate exported = Update("j", 0);
  exported.mutable_saved()->set_format("hf");
  exported.mutable_saved()->set_step(1000000);
  exported.mutable_saved()->set_seconds(7);
  reconciler_->OnReport("a", exported, 0);
  reconciler_->RunOnce();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[1], HasSubstr("step=2 seconds=0.0 omitted=0 error=No space left on device"));
  EXPECT_THAT(lines[2], HasSubstr("step=1000000 seconds=7.0 omitted=0 error="));
}

// Regression: every command on a job that saves each minute failed because of its etag.
TEST_F(ReconcilerCheckpointTest, CheckpointDoesNotChangeEtag) {
  StartSavingOn("a", 3);
  const v1::Job seen = Job("j");
  Saved("a", 12);
  EXPECT_GT(Job("j").revision(), seen.revision()) << "watchers are notified";
  EXPECT_EQ(EtagOf(Job("j")), EtagOf(seen));
  EXPECT_TRUE(reconciler_->Pause("j", "", 1000, EtagOf(seen)).ok());
  EXPECT_NE(EtagOf(Job("j")), EtagOf(seen));
}

// Ranks exchange through the rendezvous which files they have written.
TEST_F(ReconcilerCheckpointTest, CancelledJobSavesBeforeItLeaves) {
  StartSavingOn("a", 3);
  const AttemptRef ref = {"j", 1};
  EXPECT_EQ(Cancel("j", "enough")->reason(),
            "stopping the ranks, which save first if the grace suffices: enough");
  const auto stops = StopsSent("a");
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_TRUE(stops[0].save());
  EXPECT_TRUE(rendezvous_->Set(ref, "save/0", "committed").ok());
  Saved("a", 12);
  Exit("a", "j", 0, 143);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLING);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
  ASSERT_EQ(Job("j").checkpoints_size(), 1);
  EXPECT_EQ(Job("j").checkpoints(0).step(), 12);
  EXPECT_FALSE(rendezvous_->Set(ref, "save/1", "late").ok()) << "it is closed when they are gone";
}

TEST_F(ReconcilerCheckpointTest, RestartDoesNotEndSavingRanks) {
  StartSavingOn("a", 3);
  ASSERT_TRUE(Cancel("j", "enough").ok());
  StopsSent("a");
  Restart();
  Attach("a", 1, {{"j", 1}});
  const auto stops = StopsSent("a");
  ASSERT_FALSE(stops.empty());
  for (const v1::Stop& stop : stops) EXPECT_TRUE(stop.save());
  EXPECT_TRUE(rendezvous_->Set({"j", 1}, "save/0", "committed").ok());
}

TEST_F(ReconcilerCheckpointTest, RanksOfFailedAttemptCannotSave) {
  StartSavingOn("a", 3);
  Exit("a", "j", 0, 1);
  Advance(absl::Seconds(1));
  const auto stops = StopsSent("a");
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_FALSE(stops[0].save());
  EXPECT_FALSE(rendezvous_->Set({"j", 1}, "save/0", "rank 1 has left").ok());
}

// A job of five steps.
class ReconcilerLastStepTest : public ReconcilerCheckpointTest, public ::testing::WithParamInterface<bool> {};

TEST_P(ReconcilerLastStepTest, FinalCheckpointOrExportIsNotAStall) {
  plan_ = [exports = GetParam()](const v1::JobSpec& spec, int64_t) {
    Plan plan;
    plan.resolved = WithDefaults(spec, nullptr);
    plan.resolved.mutable_train()->set_steps(5);
    plan.resolved.mutable_checkpoint()->set_dir("/runs/7");
    plan.resolved.mutable_checkpoint()->set_on_end(!exports);
    if (exports) plan.resolved.mutable_checkpoint()->set_export_("hf");
    return plan;
  };
  Attach("a", 1);
  Submit("j", 1, 1);
  Ready("a", "j", 0);
  Step("a", 4, 1);
  Advance(absl::Minutes(6));
  EXPECT_NE(Job("j").stalled_since_unix_nanos(), 0);
  Step("a", 5, 1);
  Advance(absl::Minutes(6));
  EXPECT_EQ(Job("j").stalled_since_unix_nanos(), 0);
  EXPECT_EQ(Job("j").reason(), "steps continued after 6 m 00 s without one");
}
INSTANTIATE_TEST_SUITE_P(ExportsOrNot, ReconcilerLastStepTest, ::testing::Bool());

TEST_F(ReconcilerCheckpointTest, CommitIsVisibleImmediatelyAndStoredWithinASecond) {
  RunOn({"a", "b"});
  const int64_t revision = Job("j").revision();
  Saved("a", 100);
  Saved("b", 300, /*attempt=*/1, /*rank=*/1);  // Not rank 0.
  Saved("a", 400, /*attempt=*/2);              // Of an attempt that does not exist.
  ASSERT_EQ(Job("j").checkpoints_size(), 1);
  EXPECT_EQ(Job("j").checkpoints(0).step(), 100);
  EXPECT_EQ(Job("j").revision(), revision + 1);
  Advance(absl::Seconds(1));
  Restart();
  EXPECT_EQ(Job("j").checkpoints_size(), 1);
  for (const char* node : {"a", "b"}) Attach(node, 1, {{"j", 1}});
  const int64_t back = Job("j").revision();
  Saved("a", 100);  // Repeated.
  EXPECT_EQ(Job("j").checkpoints_size(), 1);
  EXPECT_EQ(Job("j").revision(), back);
}

TEST_F(ReconcilerCheckpointTest, WatchersSeeEachCheckpoint) {
  RunOn({"a"});
  const auto watch = board_->Watch("j", Job("j").revision());
  Saved("a", 100);
  Saved("a", 200, 1, 0, "No space left on device");
  v1::WatchJobResponse update;
  ASSERT_EQ(watch->Next(absl::ZeroDuration(), &update), JobWatch::Got::kUpdate);
  EXPECT_EQ(update.job().checkpoints(0).step(), 100);
  ASSERT_EQ(watch->Next(absl::ZeroDuration(), &update), JobWatch::Got::kUpdate);
  EXPECT_EQ(update.job().failed_checkpoint().error(), "No space left on device");
  EXPECT_EQ(update.job().state(), v1::JOB_STATE_RUNNING);
}

TEST_F(ReconcilerCheckpointTest, JobWithProgressIsRelaunchedWithoutLimit) {
  StartSavingOn("a", /*max_attempts=*/2);
  for (int attempt = 1; attempt <= 20; ++attempt) {
    ASSERT_EQ(Job("j").attempt(), attempt);
    Ready("a", "j", 0, attempt);
    Step("a", 100 * attempt + 50, attempt);
    Saved("a", 100 * attempt, attempt);
    FailAttempt(attempt);
    ASSERT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
    Advance(absl::Seconds(1));  // Attempts before the newest checkpoint do not extend the delay.
  }
  EXPECT_THAT(Job("j").events(Job("j").events_size() - 2).message(), HasSubstr("attempt 20 of 21 failed"));
}

TEST_F(ReconcilerCheckpointTest, AttemptsWithoutNewCheckpointEndJob) {
  StartSavingOn("a", /*max_attempts=*/3);
  Step("a", 250, 1);
  Saved("a", 200);
  FailAttempt(1);
  EXPECT_THAT(Job("j").reason(), HasSubstr("attempt 1 of 3 failed after step 250: "));
  EXPECT_THAT(Job("j").reason(),
              EndsWith("; the next one starts after " + Wait("j") + ", from the checkpoint of step 200"));
  Advance(absl::Seconds(1));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_FALSE(Job("j").has_restored());
  ReadyAfter("a", 200, 2);
  EXPECT_EQ(Job("j").restored().step(), 200);
  EXPECT_EQ(Job("j").reason(), "its rank runs");
  Saved("a", 300, /*attempt=*/1);  // Late, of the previous attempt.
  EXPECT_EQ(Job("j").checkpoints_size(), 1);
  FailAttempt(2);
  Advance(absl::Seconds(2));
  ASSERT_EQ(Job("j").attempt(), 3);
  ReadyAfter("a", 200, 3);
  FailAttempt(3);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(
      Job("j").reason(),
      HasSubstr("2 attempts in a row committed no checkpoint after that of step 200; the last one: rank "
                "0 on a failed"));
  EXPECT_EQ(store_->Get("j")->checkpoints_size(), 1) << "for a job that resumes from it";
}

// So that a rank that finds none of them does not start from scratch.
TEST_F(ReconcilerCheckpointTest, LaunchNamesNewestCheckpoint) {
  StartSavingOn("a", /*max_attempts=*/3);
  const auto told = [&] {
    const std::vector<v1::Launch> launches = LaunchesSent("a");
    return launches.size() == 1 ? launches[0].checkpoint_step() : -1;
  };
  EXPECT_EQ(told(), 0);
  Saved("a", 100);
  Saved("a", 200);
  FailAttempt(1);
  Restart();
  Attach("a", 1);
  Advance(options_.reattach_grace + absl::Seconds(1));
  EXPECT_EQ(told(), 200);
  Exit("a", "j", 0, 1, 2);  // It found no checkpoint.
  Stopped("a", "j", 2);
  Advance(absl::Seconds(2));
  EXPECT_EQ(told(), 200) << "the directory may be back";
  ReadyAfter("a", 100, 3);
  FailAttempt(3);
  EXPECT_EQ(Job("j").checkpoints_size(), 1);
  EXPECT_EQ(Job("j").checkpoints(0).step(), 100) << "the skipped checkpoint is not used again";
}

TEST_F(ReconcilerCheckpointTest, JobWithoutCheckpointsIsGivenUpAfterItsAttempts) {
  StartSavingOn("a", /*max_attempts=*/2);
  FailAttempt(1);
  Advance(absl::Seconds(1));
  Ready("a", "j", 0, 2);
  FailAttempt(2);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job("j").reason(),
              HasSubstr("2 attempts in a row committed no checkpoint; the last one: rank 0"));
}

// The coordinator ends between the failure and the next launch: while the attempt is stopping, or while the
// job waits for a node.
TEST_F(ReconcilerCheckpointTest, RewoundJobKeepsSkippedSamplesAcrossRestarts) {
  plan_ = [](const v1::JobSpec& spec, int64_t) {
    Plan plan;
    plan.resolved = WithDefaults(spec, nullptr);
    plan.resolved.mutable_checkpoint()->set_dir("/runs/7");
    plan.resolved.mutable_train()->set_global_batch(12);
    plan.resolved.mutable_train()->mutable_on_spike()->set_max(5);
    return plan;
  };
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/1);
  Ready("a", "j", 0);
  Saved("a", 6);
  EndByBadStep("a", /*step=*/8, /*first_sample=*/84, /*attempt=*/1);
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Restart();
  Attach("a", 1, {{"j", 1}});
  Detach("a");
  Stopped("a", "j");
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Restart();
  Attach("a", 1);
  Advance(options_.reattach_grace + absl::Seconds(1));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  std::vector<v1::Launch> launches = LaunchesSent("a");
  ASSERT_EQ(launches.size(), 1u);
  ASSERT_EQ(launches[0].skipped_samples_size(), 1);
  EXPECT_EQ(launches[0].skipped_samples(0).first(), 72);
  EXPECT_EQ(launches[0].skipped_samples(0).end(), 96);
  EXPECT_EQ(Job("j").rewinds(), 1);

  ReadyAfter("a", 6, 2);
  EndByBadStep("a", 9, 120, 2);
  Stopped("a", "j", 2);
  Advance(absl::Seconds(1));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING) << Job("j").reason();
  launches = LaunchesSent("a");
  ASSERT_EQ(launches.size(), 1u);
  ASSERT_EQ(launches[0].skipped_samples_size(), 1);
  EXPECT_EQ(launches[0].skipped_samples(0).end(), 132);
  Exit("a", "j", 0, 1, 3);  // Another cause: the only attempt that counts.
  Stopped("a", "j", 3);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
}

TEST_F(ReconcilerCheckpointTest, WatchersSeeEachSkippedStep) {
  RunOn({"a"});
  const auto watch = board_->Watch("j", Job("j").revision());
  v1::RankUpdate update = Update("j", 0);
  update.mutable_step()->set_step(4);
  update.mutable_step()->mutable_bad_step()->set_step(4);
  reconciler_->OnReport("a", update, 0);
  reconciler_->RunOnce();
  v1::WatchJobResponse seen;
  while (!seen.has_job()) ASSERT_EQ(watch->Next(absl::ZeroDuration(), &seen), JobWatch::Got::kUpdate);
  EXPECT_EQ(seen.job().skipped_steps(), 1);
  EXPECT_EQ(seen.job().bad_steps(0).step(), 4);
  reconciler_->OnReport("a", update, 0);  // Repeated.
  reconciler_->RunOnce();
  EXPECT_EQ(Job("j").skipped_steps(), 1);
}

TEST_F(ReconcilerCheckpointTest, CheckpointOfStoppingJobCounts) {
  RunOn({"a"});
  Cancel("j").IgnoreError();
  Saved("a", 100);
  Exit("a", "j", 0, 0);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(store_->Get("j")->checkpoints_size(), 1);
}

TEST_F(ReconcilerCheckpointTest, RestartCountsAttemptsFromCheckpoint) {
  StartSavingOn("a", /*max_attempts=*/2);
  for (int attempt = 1; attempt <= 6; ++attempt) {
    Ready("a", "j", 0, attempt);
    Saved("a", 100 * attempt, attempt);
    FailAttempt(attempt);
    if (attempt < 6) Advance(absl::Seconds(1));
  }
  Restart();
  Attach("a", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Advance(options_.reattach_grace + absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 7);
}

}  // namespace
}  // namespace fsdpd
