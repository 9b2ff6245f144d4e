#include "client/text/job_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/text/job_text.h"
#include "client/text/node_text.h"
#include "fsdp/plan/spec/testing/small_package.h"

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kSecond = 1'000'000'000;

v1::Job EndedJob(v1::JobState state) {
  v1::Job job;
  job.set_id("tiny-k3x9q2");
  job.set_state(state);
  job.set_attempt(1);
  job.mutable_spec()->mutable_train()->set_steps(200);
  job.mutable_spec()->mutable_resources()->set_nodes(2);
  job.mutable_spec()->mutable_resources()->set_ranks_per_node(2);
  job.set_create_unix_nanos(1000 * kSecond);
  job.set_start_unix_nanos(1002 * kSecond);
  job.set_end_unix_nanos(1044 * kSecond);
  job.mutable_last_step()->set_step(200);
  job.mutable_last_step()->set_loss(2.441);
  job.mutable_last_step()->set_step_seconds(0.165);
  job.mutable_last_step()->set_tokens(2030);
  job.set_first_loss(5.6021);
  job.set_peak_bytes(64172851);
  job.mutable_memory_plan()->set_peak_bytes(66060288);
  return job;
}

// Regression: all graphs, twice.
TEST(JobDescription, ShowsPackageByDigestAndSize) {
  v1::Job job = EndedJob(v1::JOB_STATE_SUCCEEDED);
  *job.mutable_spec()->mutable_model()->mutable_package() = SmallPackage();
  *job.mutable_resolved() = job.spec();
  const std::string text = DescribeJob(job, absl::FromUnixSeconds(1065));
  EXPECT_THAT(text, HasSubstr("\npackage:   digest aaaaaaaaaaaa, 4 units, 3632 parameters\n"));
  EXPECT_THAT(text, HasSubstr("\n      path: /models/small.fsdpd\n"));
  EXPECT_THAT(text, Not(HasSubstr("digest:"))) << "the spec can be submitted";
  EXPECT_THAT(text, Not(HasSubstr("graphs")));
}

absl::Time Now() { return absl::FromUnixSeconds(1065); }
// The error of a rank whose checkpoint lacks several parameters of the model.
TEST(JobDescription, TableListsMultilineReason) {
  v1::Job job = EndedJob(v1::JOB_STATE_FAILED);
  job.mutable_failure()->set_rank(0);
  job.mutable_failure()->set_node("node-0");
  job.mutable_failure()->set_exit_code(1);
  job.mutable_failure()->set_error("/runs/6 is of another model:\n  P.a is missing\n  P.b is\x1b missing");
  job.set_reason("attempt 1 of 2 failed: rank 0 on node-0 failed: " + job.failure().error() +
                 "\nthe next one starts after 1s");
  v1::Job::Event* event = job.add_events();
  event->set_unix_nanos(1010 * kSecond);
  event->set_state(v1::JOB_STATE_QUEUED);
  event->set_message(job.reason());
  const std::string pad(55, ' ');
  EXPECT_THAT(
      JobTable({job}, Now()),
      HasSubstr("1 m 05 s  attempt 1 of 2 failed: rank 0 on node-0 failed: /runs/6 is of another model:\n" +
                pad + "  P.a is missing\n" + pad + "  P.b is  missing\n" + pad +
                "the next one starts after 1s\n"));
  const std::string text = DescribeJob(job, Now());
  EXPECT_THAT(text,
              HasSubstr("state:     failed (attempt 1 of 2 failed: rank 0 on node-0 failed: /runs/6 is of "
                        "another model: ...)\n"));
  EXPECT_THAT(text, HasSubstr("  rank 0 on node-0 ended with exit code 1: /runs/6 is of another model:\n"
                              "    P.a is missing\n"
                              "    P.b is  missing\n"));
  EXPECT_THAT(text,
              HasSubstr("  00:16:50  queued  attempt 1 of 2 failed: rank 0 on node-0 failed: /runs/6 is of "
                        "another model:\n"
                        "                      P.a is missing\n"));
}

TEST(JobDescription, DrainedAttemptIsNotFailure) {
  v1::Job job = EndedJob(v1::JOB_STATE_QUEUED);
  job.mutable_resolved()->mutable_restart()->set_max_attempts(1);
  job.mutable_failure()->set_attempt(1);
  job.mutable_failure()->set_drained(true);
  job.set_drains_since_checkpoint(1);
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("\nattempt:   1 of 2\n"));
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("\nend of attempt 1:\n"));
}

// Regression: this was shown as a failure of the job on a node without an error.
TEST(JobDescription, AttemptNewerThanBackupIsNotFailure) {
  v1::Job job = EndedJob(v1::JOB_STATE_QUEUED);
  job.mutable_failure()->set_attempt(1);
  job.mutable_failure()->set_rank(-1);
  job.mutable_failure()->set_node("node-0");
  job.mutable_failure()->set_newer_attempt(2);
  job.mutable_failure()->set_error("node node-0 hosts attempt 2 of the job");
  EXPECT_THAT(DescribeJob(job, Now()),
              HasSubstr("\nend of attempt 1:\n  node node-0 hosts attempt 2 of the job\n"));
}

TEST(JobDescription, EndedJobHasNoNextLaunch) {
  v1::Job job = EndedJob(v1::JOB_STATE_QUEUED);
  job.clear_end_unix_nanos();
  job.mutable_shrunk()->set_reason("lost node-1");
  EXPECT_THAT(DescribeJob(job, Now()),
              HasSubstr("fewer ranks, because it lost node-1; its next launch uses all"));
  job.set_end_unix_nanos(1);
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("fewer ranks, because it lost node-1\n"));
}

TEST(JobDescription, DescribeShowsCauseAndFailedAttempts) {
  v1::Job job = EndedJob(v1::JOB_STATE_FAILED);
  job.mutable_failure()->set_attempt(2);
  job.mutable_failure()->set_cause(v1::FAILURE_CAUSE_NO_PROGRESS);
  v1::Job::FailedAttempt* first = job.add_failed_attempts();
  first->set_attempt(1);
  first->set_cause(v1::FAILURE_CAUSE_NODE);
  first->set_node("node-1");
  first->set_step(40);
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("failure of attempt 2 (no_progress):\n"));
  EXPECT_EQ(DescribeJob(job, Now()).find("failed attempts:"), std::string::npos) << "reported once, above";
  job.add_failed_attempts()->set_attempt(2);
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("failed attempts:\n"
                                                 "  ATTEMPT  CAUSE  NODE    STEP\n"
                                                 "  1        node   node-1  40\n"
                                                 "  2        -      -       0\n"));
}

TEST(JobDescription, ShowsStalledJobs) {
  v1::Job job = EndedJob(v1::JOB_STATE_RUNNING);
  job.set_reason("no step for 12 s; the last one took 165 ms");  // The text when the stall was detected.
  job.set_stalled_since_unix_nanos(1023 * kSecond);
  for (const std::string& text : {JobTable({job}, Now()), DescribeJob(job, Now())}) {
    EXPECT_NE(text.find("no step for 42 s; the last one took 165 ms"), std::string::npos) << text;
  }
  v1::Node node;
  node.set_connected(true);
  node.add_stalled_jobs(job.id());
  EXPECT_NE(NodeTable({node}, Now()).find("ready, no step of tiny-k3x9q2"), std::string::npos);
}

TEST(JobDescription, DescribeShowsHang) {
  v1::Job job = EndedJob(v1::JOB_STATE_FAILED);
  v1::Job::Failure* failure = job.mutable_failure();
  failure->set_rank(2);
  failure->set_node("node-1");
  failure->set_attempt(1);
  failure->set_error("no progress for 31 s, stopped by a signal");
  failure->mutable_hang()->set_evidence("/var/lib/fsdpd/rank-2.hang.txt");
  for (const int rank : {0, 1, 3}) {
    if (failure->hang().positions().empty())
      failure->mutable_hang()->add_positions()->set_position("step 22: gather in");
    failure->mutable_hang()->mutable_positions(0)->add_ranks(rank);
  }
  EXPECT_THAT(DescribeJob(job, Now()),
              HasSubstr("failure of attempt 1:\n"
                        "  rank 2 on node-1 hangs: no progress for 31 s, stopped by a signal\n"
                        "  RANKS  BLOCKED IN\n"
                        "  0-1,3  step 22: gather in\n"
                        "  threads: /var/lib/fsdpd/rank-2.hang.txt on node-1 (fsdpctl logs " +
                        job.id() + " --evidence --rank 2 --attempt 1)\n"));
  failure->set_rank(-1);
  failure->clear_node();
  failure->mutable_hang()->clear_evidence();
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("  the job hangs: no progress"));
}

TEST(JobDescription, DescribeShowsPositionsOfStalledRanks) {
  v1::Job job = EndedJob(v1::JOB_STATE_RUNNING);
  EXPECT_EQ(DescribeJob(job, Now()).find("stood"), std::string::npos);
  v1::Job::Position* stand = job.add_positions();
  stand->set_position("step 3: reduce in Norm");
  for (const int rank : {0, 1, 2, 4, 6, 7}) stand->add_ranks(rank);
  stand = job.add_positions();
  stand->set_position("stopped\x1b[2J");
  stand->add_ranks(3);
  EXPECT_NE(DescribeJob(job, Now())
                .find("positions of stalled ranks:\n"
                      "  RANKS      BLOCKED IN\n"
                      "  0-2,4,6-7  step 3: reduce in Norm\n"
                      "  3          stopped [2J\n"),
            std::string::npos)
      << DescribeJob(job, Now());
}

v1::SavedCheckpoint Saved(int64_t step, const std::string& error = "") {
  v1::SavedCheckpoint saved;
  saved.set_step(step);
  saved.set_path("/runs/7/iter_" + std::to_string(step));
  saved.set_bytes(error.empty() ? int64_t{3} << 29 : 0);
  saved.set_seconds(3.125);
  saved.set_stall_seconds(0.04);
  saved.set_error(error);
  saved.set_unix_nanos((1000 + step) * kSecond);
  return saved;
}

TEST(JobDescription, ShowsFailedCheckpointWhileRunning) {
  v1::Job job = EndedJob(v1::JOB_STATE_RUNNING);
  job.set_reason("all 4 ranks run");
  *job.mutable_failed_checkpoint() = Saved(40, "No space left\non device");
  const std::string words = "checkpoint of step 40 could not be written: No space left on device";
  EXPECT_THAT(JobTable({job}, Now()), HasSubstr(words));
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("checkpoints:\n  " + words + " (25 s ago)\n"));
  job.set_state(v1::JOB_STATE_STOPPING);
  job.set_reason("rank 1 failed");
  EXPECT_THAT(JobTable({job}, Now()), HasSubstr("rank 1 failed"));
}

TEST(JobDescription, TableShowsProjectsIfAny) {
  v1::Job plain = EndedJob(v1::JOB_STATE_SUCCEEDED), vision = plain;
  EXPECT_THAT(JobTable({plain}, Now()), Not(HasSubstr("PROJECT")));
  vision.set_project("vision");
  const std::string table = JobTable({plain, vision}, Now());
  EXPECT_THAT(table, HasSubstr("  PROJECT  STATE "));
  EXPECT_THAT(table, HasSubstr("  vision   succeeded "));
  EXPECT_THAT(table, HasSubstr("  -        succeeded "));
  EXPECT_THAT(DescribeJob(vision, Now()), HasSubstr("\nproject:   vision\n"));
}

TEST(JobDescription, DescribeShowsGoodputLedger) {
  v1::Job job;
  EXPECT_EQ(DescribeJob(job, Now()).find("time:"), std::string::npos) << "an older coordinator sends none";
  job.mutable_ledger()->set_queue_seconds(10);
  job.mutable_ledger()->set_step_seconds(69.9);
  job.mutable_ledger()->set_exposed_seconds(20);
  job.mutable_ledger()->set_other_seconds(0.1);
  EXPECT_NE(DescribeJob(job, Now()).find(": step 70%, exposed 20%, queue 10%\n"), std::string::npos)
      << DescribeJob(job, Now());
}

TEST(JobDescription, DescribeShowsDependencies) {
  v1::Job job = EndedJob(v1::JOB_STATE_QUEUED);
  EXPECT_THAT(DescribeJob(job, Now()), Not(HasSubstr("after:")));
  job.add_after()->set_job("a-1");
  job.mutable_after(0)->set_succeeded(true);
  job.add_after()->set_job("b-2");
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("\nafter:     a-1 (succeeded), b-2\n"));
  job.set_preemptible(true);
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("\npreemptible: by jobs of higher priority\n"));
}

TEST(JobDescription, DescribeShowsCheckpoints) {
  v1::Job job = EndedJob(v1::JOB_STATE_RUNNING);
  EXPECT_THAT(DescribeJob(job, Now()), Not(HasSubstr("checkpoint")));
  for (int step = 10; step <= 60; step += 10) *job.add_checkpoints() = Saved(step);
  job.set_attempt(2);
  job.set_attempts_before_checkpoint(1);
  job.mutable_restored()->set_step(20);
  job.mutable_restored()->set_path("/runs/7/iter_20");
  job.mutable_restored()->set_seconds(2);
  job.mutable_restored()->add_skipped_checkpoints("/runs/7/iter_25: no .metadata");
  job.mutable_restored()->add_notes("train.seed: 1 there, and 2 here");
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("attempt:   2 of 2\n"));
  EXPECT_THAT(DescribeJob(job, Now()),
              HasSubstr("attempt 2 started after step 20, from /runs/7/iter_20 (read in 2 s)\n"
                        "  skipped checkpoint: /runs/7/iter_25: no .metadata\n"
                        "  note: train.seed: 1 there, and 2 here\n"
                        "checkpoints:\n"
                        "  STEP  AGE   BYTES     TOOK  WAITED  PATH\n"
                        "  60    5 s   1.50 GiB  3 s   40 ms   /runs/7/iter_60\n"
                        "  50    15 s  1.50 GiB  3 s   40 ms   /runs/7/iter_50\n"
                        "  40    25 s  1.50 GiB  3 s   40 ms   /runs/7/iter_40\n"
                        "  30    35 s  1.50 GiB  3 s   40 ms   /runs/7/iter_30\n"
                        "  20    45 s  1.50 GiB  3 s   40 ms   /runs/7/iter_20\n"
                        "  and 1 older\n"));
  job.mutable_resolved()->mutable_checkpoint()->set_keep_last(2);
  job.mutable_resolved()->mutable_checkpoint()->set_keep_every(30);
  EXPECT_THAT(DescribeJob(job, Now()),
              HasSubstr("  50    15 s  1.50 GiB  3 s   40 ms   /runs/7/iter_50\n"
                        "  40    25 s  1.50 GiB  3 s   40 ms   removed (checkpoint.keep_last)\n"
                        "  30    35 s  1.50 GiB  3 s   40 ms   /runs/7/iter_30\n"
                        "  20    45 s  1.50 GiB  3 s   40 ms   removed (checkpoint.keep_last)\n"
                        "  and 1 older, 1 of them removed\n"));
  for (auto& each : *job.mutable_checkpoints()) {
    each.clear_bytes();  // Listed only because an attempt resumed from it.
  }
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("  60    5 s   -      -     -       /runs/7/iter_60\n"));
  job.mutable_restored()->set_step(0);
  EXPECT_THAT(DescribeJob(job, Now()),
              HasSubstr("attempt 2 started at step 1, with only the parameters, from /r"));
}

TEST(JobDescription, DescribeShowsBadSteps) {
  v1::Job job = EndedJob(v1::JOB_STATE_RUNNING);
  EXPECT_THAT(DescribeJob(job, Now()), Not(HasSubstr("bad steps")));
  for (int step = 1; step <= 7; ++step) {
    v1::BadStep* bad = job.add_bad_steps();
    bad->set_step(step);
    bad->set_kind(step % 2 == 0 ? v1::BAD_STEP_KIND_SPIKE : v1::BAD_STEP_KIND_NONFINITE);
    bad->set_loss(2.5);
    bad->set_grad_norm(12.345);
    bad->set_threshold(step % 2 == 0 ? 4 : 0);
    bad->set_first_sample(12 * step - 12);
    bad->set_end_sample(12 * step);
  }
  job.set_skipped_steps(40);
  job.set_rewinds(2);
  job.set_rewinds_since_checkpoint(1);
  job.add_skipped_samples()->set_first(60);
  job.mutable_skipped_samples(0)->set_end(84);
  const std::string text = DescribeJob(job, Now());
  EXPECT_THAT(text, HasSubstr("bad steps: 40 skipped, 2 rewound\n"
                              "  STEP  WHY         LOSS  NORM   ABOVE  SAMPLES\n"
                              "  7     not finite  2.5   12.35  -      72 to 83\n"
                              "  6     spike       2.5   12.35  4      60 to 71\n"));
  EXPECT_THAT(text, HasSubstr("  and 37 older\n  samples 60 to 83 are skipped\n"));
  EXPECT_THAT(text, HasSubstr("attempt:   1 of 2\n")) << "the rewound attempt does not count";
  job.set_attempt(3);
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("bad steps: 40 skipped in 3 attempts, 2 rewound\n"));
}

TEST(JobDescription, NewJobLinesOmitsKnownCheckpoints) {
  v1::Job before;
  before.set_attempt(1);
  *before.add_checkpoints() = Saved(10);
  v1::Job job = before;
  EXPECT_THAT(NewJobLines(before, job), IsEmpty());
  *job.add_checkpoints() = Saved(20);
  *job.add_checkpoints() = Saved(30);
  *job.mutable_failed_checkpoint() = Saved(40, "full");
  EXPECT_THAT(NewJobLines(before, job), ElementsAre("checkpoint of step 20 committed (1.50 GiB in 3 s)",
                                                    "checkpoint of step 30 committed (1.50 GiB in 3 s)",
                                                    "checkpoint of step 40 could not be written: full"));
  EXPECT_THAT(NewJobLines(job, job), IsEmpty());
  v1::Job next = job;
  next.set_attempt(2);
  next.clear_failed_checkpoint();
  next.mutable_restored()->set_step(20);
  next.mutable_checkpoints()->RemoveLast();  // It was skipped.
  EXPECT_THAT(NewJobLines(job, next), ElementsAre("resumes after step 20"));
  EXPECT_THAT(NewJobLines(next, next), IsEmpty());
  job = next;
  job.set_attempt(3);
  job.add_checkpoints()->set_step(20);  // Listed without details: only "resumes after" is printed.
  EXPECT_THAT(NewJobLines(next, job), ElementsAre("resumes after step 20")) << "this one too";
}

TEST(JobDescription, ShowsWarnings) {
  const v1::Job before = EndedJob(v1::JOB_STATE_SUCCEEDED);
  v1::Job job = before;
  job.add_warnings("nothing\ncounts");
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("\nwarning:   nothing counts\n"));
  EXPECT_THAT(Summary(job, {}), HasSubstr("\n  warning             nothing counts\n"));
  EXPECT_THAT(NewJobLines(before, job), ElementsAre("warning: nothing counts"));
  EXPECT_THAT(NewJobLines(job, job), IsEmpty());
}

TEST(JobDescription, DescribeShowsMasks) {
  v1::Job job = EndedJob(v1::JOB_STATE_SUCCEEDED);
  job.mutable_spec()->mutable_data()->add_tokens()->set_path("a");
  EXPECT_THAT(DescribeJob(job, Now()), Not(HasSubstr("\ndata: ")));
  job.mutable_spec()->mutable_data()->add_tokens()->set_mask("b.mask");
  job.mutable_spec()->mutable_data()->set_document_end_token(7);
  EXPECT_THAT(DescribeJob(job, Now()),
              HasSubstr("\ndata:      1 of 2 files with a mask, documents end with token 7\n"));
}

TEST(JobDescription, DescribeShowsExport) {
  v1::Job job = EndedJob(v1::JOB_STATE_SUCCEEDED);
  *job.mutable_exported() = Saved(200);
  job.mutable_exported()->set_format("hf");
  job.mutable_exported()->set_path("/runs/7/hf");
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("\nexported: /runs/7/hf (1.50 GiB in 3 s)\n"));
  job.mutable_exported()->set_error("the disk\nis full");
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("\nnot exported: /runs/7/hf: the disk is full\n"));
}

TEST(JobDescription, SummaryShowsNewestCheckpoint) {
  v1::Job job = EndedJob(v1::JOB_STATE_FAILED);
  *job.add_checkpoints() = Saved(150);
  EXPECT_THAT(Summary(job, {}), HasSubstr("\n  checkpoint          of step 150, /runs/7/iter_150\n"));
}

TEST(JobDescription, SummaryOfSuccess) {
  StepHistory history;
  for (int step = 1; step <= 200; ++step) history.Add(EndedJob(v1::JOB_STATE_SUCCEEDED).last_step());
  EXPECT_EQ(Summary(EndedJob(v1::JOB_STATE_SUCCEEDED), history),
            "tiny-k3x9q2 succeeded after 200 steps in 42 s\n"
            "  loss                5.6021 -> 2.4410\n"
            "  step                165 ms (median of 200)\n"
            "  tokens/s            12.3 k\n"
            "  overlap             no communication\n"
            "  peak memory         61.2 MiB measured, 63.0 MiB planned (-3%)\n"
            "  device allocations  0 in steady state\n");
}

// Regression: the time of only the last attempt was shown.
TEST(JobDescription, SummaryShowsTimeOfAllAttempts) {
  v1::Job job = EndedJob(v1::JOB_STATE_SUCCEEDED);
  job.set_attempt(3);
  job.set_start_unix_nanos(1030 * kSecond);
  job.mutable_ledger()->set_queue_seconds(2);
  job.mutable_ledger()->set_pause_seconds(14);
  EXPECT_THAT(Summary(job, {}), HasSubstr("tiny-k3x9q2 succeeded after 200 steps in 28 s, 3 attempts\n"));
}

// Regression: it was omitted for jobs with a second attempt.
TEST(JobDescription, SummaryShowsFirstStep) {
  v1::Job job = EndedJob(v1::JOB_STATE_SUCCEEDED);
  job.set_initial_checkpoint_step(120);
  EXPECT_THAT(Summary(job, {}),
              HasSubstr("tiny-k3x9q2 succeeded after 200 steps in 42 s, resumed after step 120\n"));
  job.set_attempt(2);
  job.mutable_restored()->set_step(190);
  EXPECT_THAT(Summary(job, {}), HasSubstr(" in 44 s, 2 attempts, resumed after step 120\n"));
}

// Regression: the summary was "after 0 steps", without loss, step time and tokens/s.
TEST(JobDescription, SummaryWithoutStepsInLastAttempt) {
  v1::Job job = EndedJob(v1::JOB_STATE_SUCCEEDED);
  job.mutable_previous_last_step()->Swap(job.mutable_last_step());
  job.clear_last_step();
  job.mutable_restored()->set_step(200);
  *job.add_checkpoints() = Saved(200);
  const std::string text = Summary(job, {});
  EXPECT_THAT(text, HasSubstr("succeeded after 200 steps in 42 s\n"));
  EXPECT_THAT(text, HasSubstr("\n  loss                5.6021 -> 2.4410\n"
                              "  step                165 ms (the last)\n"
                              "  tokens/s            12.3 k\n"));
  EXPECT_THAT(text, Not(HasSubstr("device allocations")));
  EXPECT_THAT(JobTable({job}, Now()), HasSubstr("  200/200  2.4410  "));
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("\nprogress:  step 200/200\nloss:      5.6021 -> 2.4410\n"));
}

TEST(JobDescription, SummaryOfCancelledJobShowsLoss) {
  v1::Job job = EndedJob(v1::JOB_STATE_CANCELLED);
  job.mutable_previous_last_step()->Swap(job.mutable_last_step());
  job.clear_last_step();
  job.mutable_previous_last_step()->set_step(175);
  *job.add_checkpoints() = Saved(150);
  const std::string text = Summary(job, {});
  EXPECT_THAT(text, HasSubstr("cancelled after 150/200 steps"));
  EXPECT_THAT(text, HasSubstr("\n  loss                5.6021 -> 2.4410 (at step 175)\n"));
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("150/200\nloss:      5.6021 -> 2.4410 (at step 175)\n"));
}

TEST(JobDescription, DescribeOfEndedJobHasNoEta) {
  v1::Job job = EndedJob(v1::JOB_STATE_CANCELLED);
  job.mutable_last_step()->set_step(20);
  EXPECT_THAT(DescribeJob(job, Now()), ::testing::Not(HasSubstr("eta")));
  job.set_state(v1::JOB_STATE_RUNNING);
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("  eta 30 s\n"));
}

// Regression: only succeeded jobs omitted the log lines of a failure that they had recovered from.
TEST(JobDescription, DescribeShowsLogOfCurrentFailureOnly) {
  v1::Job job = EndedJob(v1::JOB_STATE_SUCCEEDED);
  v1::Job::Failure* failure = job.mutable_failure();
  failure->set_rank(1);
  failure->set_node("node-0");
  failure->set_signal(9);
  failure->set_attempt(1);
  failure->add_log_tail("step 1");
  const auto shown = [&](v1::JobState state, int attempt) {
    job.set_state(state);
    job.set_attempt(attempt);
    const std::string text = DescribeJob(job, Now());
    const bool lines = text.find("  | step 1") != std::string::npos;
    EXPECT_NE(text.find("\n  log: fsdpctl logs tiny-k3x9q2 --rank 1 --attempt 1\n") != std::string::npos,
              lines);
    return lines;
  };
  for (const v1::JobState state :
       {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_RUNNING, v1::JOB_STATE_PAUSED, v1::JOB_STATE_CANCELLED}) {
    EXPECT_FALSE(shown(state, 1)) << v1::JobState_Name(state);
    EXPECT_FALSE(shown(state, 2)) << v1::JobState_Name(state);
  }
  EXPECT_TRUE(shown(v1::JOB_STATE_FAILED, 1));
  EXPECT_TRUE(shown(v1::JOB_STATE_QUEUED, 1)) << "in back-off";
  EXPECT_FALSE(shown(v1::JOB_STATE_QUEUED, 2)) << "after a pause of the attempt that recovered from it";
}

TEST(JobDescription, DescribeShowsAttemptOfStartTime) {
  v1::Job job = EndedJob(v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("\nstarted:   1970-01-01 00:16:42 UTC (1 m 03 s ago)\n"));
  job.set_attempt(2);
  EXPECT_THAT(DescribeJob(job, Now()),
              HasSubstr("\nstarted:   1970-01-01 00:16:42 UTC (1 m 03 s ago), attempt 2\n"));
}

TEST(JobDescription, SummaryShowsDataWait) {
  StepHistory history;
  v1::StepReport report = EndedJob(v1::JOB_STATE_SUCCEEDED).last_step();
  report.set_data_wait_seconds(0.25);
  for (int step = 1; step <= 42; ++step) history.Add(report);
  EXPECT_THAT(Summary(EndedJob(v1::JOB_STATE_SUCCEEDED), history),
              HasSubstr("\n  waited for data     10 s in total, on rank 0\n"));
}

TEST(JobDescription, ShowsValidationAndEpochs) {
  v1::Job job = EndedJob(v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(Summary(job, {}), Not(AnyOf(HasSubstr("validation"), HasSubstr("epochs"))));
  job.mutable_last_validation()->set_step(200);
  job.mutable_last_validation()->set_loss(2.1034);
  *job.mutable_best_validation() = job.last_validation();
  EXPECT_THAT(Summary(job, {}), HasSubstr("\n  validation loss     2.1034 after step 200\n"));
  job.mutable_best_validation()->set_step(150);
  job.mutable_best_validation()->set_loss(2.0911);
  job.set_epoch_samples(320);
  job.mutable_resolved()->mutable_train()->set_global_batch(8);
  const std::string best = "2.1034 after step 200, best 2.0911 after step 150\n";
  EXPECT_THAT(Summary(job, {}),
              AllOf(HasSubstr("  validation loss     " + best), HasSubstr("  epochs              5.00\n")));
  EXPECT_THAT(DescribeJob(job, Now()),
              AllOf(HasSubstr("\nvalidation loss: " + best), HasSubstr("\nepochs:    5.00\n")));
  job.mutable_spec()->mutable_train()->set_epochs(5);
  EXPECT_THAT(DescribeJob(job, Now()), HasSubstr("\nepochs:    5.00/5\n"));
}

TEST(JobDescription, SummaryOfFailure) {
  v1::Job job = EndedJob(v1::JOB_STATE_FAILED);
  job.clear_last_step();
  v1::Job::Failure* failure = job.mutable_failure();
  failure->set_rank(3);
  failure->set_node("node-1");
  failure->set_signal(9);
  failure->set_attempt(1);
  failure->set_error("no last word");
  failure->add_log_tail("step 1");
  failure->add_log_tail("\x1b[31mboom");
  EXPECT_EQ(Summary(job, {}),
            "tiny-k3x9q2 failed after 0/200 steps in 42 s\n"
            "  rank 3 on node-1 was killed by signal 9 (Killed): no last word\n"
            "  end of the log (complete: fsdpctl logs tiny-k3x9q2 --rank 3 --attempt 1):\n"
            "  | step 1\n"
            "  |  [31mboom\n");
}

TEST(JobDescription, FailureWithoutMessageShowsExitOnce) {
  v1::Job job = EndedJob(v1::JOB_STATE_FAILED);
  v1::Job::Failure* failure = job.mutable_failure();
  failure->set_rank(3);
  failure->set_node("node-1");
  failure->set_signal(9);
  failure->set_error("killed by signal 9 (SIGKILL); it was in step 12: compute in Forward head mb 0");
  EXPECT_THAT(Summary(job, {}),
              ::testing::HasSubstr("\n  rank 3 on node-1 was killed by signal 9 (SIGKILL); it "
                                   "was in step 12: compute in Forward head mb 0\n"));
  failure->set_signal(0);
  failure->set_exit_code(5);
  failure->set_error("exited with code 5; it was in step 12: compute in Forward head mb 0");
  EXPECT_THAT(Summary(job, {}),
              ::testing::HasSubstr("\n  rank 3 on node-1 exited with code 5; it was in step"));
}

TEST(JobDescription, FailureWithoutRank) {
  v1::Job job = EndedJob(v1::JOB_STATE_FAILED);
  job.clear_last_step();
  job.mutable_failure()->set_rank(-1);
  job.mutable_failure()->set_error("node-1 was lost");
  EXPECT_NE(Summary(job, {}).find("  the job failed: node-1 was lost\n"), std::string::npos);
  job.mutable_failure()->set_rank(0);
  job.mutable_failure()->set_exit_code(1);
  EXPECT_NE(Summary(job, {}).find("  rank 0 ended with exit code 1: node-1 was lost\n"), std::string::npos);
}

TEST(JobDescription, DescribeShowsPlacementMemoryEventsAndSpec) {
  v1::Job job = EndedJob(v1::JOB_STATE_RUNNING);
  job.set_end_unix_nanos(0);
  job.set_reason("all ranks have reported in");
  auto* placement = job.add_placements();
  placement->set_node("node-1");
  placement->set_first_rank(2);
  placement->set_ranks(2);
  placement->add_devices(0);
  placement->add_devices(1);
  auto* component = job.mutable_memory_plan()->add_components();
  component->set_name("optimizer");
  component->set_bytes(2048);
  component->set_note("exact");
  job.mutable_memory_plan()->set_host_bytes(4096);
  auto* event = job.add_events();
  event->set_unix_nanos(1002 * kSecond);
  event->set_state(v1::JOB_STATE_STARTING);
  event->set_message("launched");
  EXPECT_EQ(DescribeJob(job, Now()),
            R"(id:        tiny-k3x9q2
state:     running (all ranks have reported in)
attempt:   1 of 1
ranks:     4
submitted: 1970-01-01 00:16:40 UTC (1 m 05 s ago)
started:   1970-01-01 00:16:42 UTC (1 m 03 s ago)
ended:     -
progress:  step 200/200  loss 2.4410  norm 0  lr 0.00e+00  tok/s 12.3 k  step 165 ms  overlap -  peak 0 B  eta 0 ms
loss:      5.6021 -> 2.4410
device allocations in steady state: 0
placement:
  NODE    RANKS  DEVICES
  node-1  2-3    0,1
memory per rank: 61.2 MiB measured, 63.0 MiB planned (-3%)
  COMPONENT  PLANNED   NOTE
  optimizer  2.00 KiB  exact
  host       4.00 KiB  pinned host memory: checkpoint snapshots
events (UTC):
  TIME      STATE     MESSAGE
  00:16:42  starting  launched
spec:
  train:
    steps: 200
  resources:
    nodes: 2
    ranks_per_node: 2
)");
}

TEST(JobDescription, DescribeShowsResolvedSpec) {
  v1::Job job;
  job.mutable_memory_plan()->set_peak_bytes(2048);
  job.mutable_resolved()->mutable_resources()->set_nodes(3);
  job.mutable_resolved()->mutable_resources()->set_ranks_per_node(2);
  job.mutable_resolved()->mutable_restart()->set_max_attempts(4);
  const std::string text = DescribeJob(job, Now());
  EXPECT_NE(text.find("ranks:     6\n"), std::string::npos) << text;
  EXPECT_NE(text.find("attempt:   0 of 4\n"), std::string::npos) << text;
  EXPECT_NE(text.find("resolved spec:\n  resources:\n    nodes: 3\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("replanned"), std::string::npos) << text;
  job.set_plan_provisional(true);
  EXPECT_NE(DescribeJob(job, Now()).find("2.00 KiB planned; replanned once"), std::string::npos);
}

// Regression: rank 0's measured peak was compared with the plan of another stage, and was 40% lower.
TEST(JobDescription, DoesNotComparePeaksOfDifferentStages) {
  v1::Job job;
  job.set_peak_bytes(3072);
  job.mutable_memory_plan()->set_peak_bytes(5120);
  job.mutable_resolved()->mutable_parallel()->set_pipeline(2);
  const std::string text = DescribeJob(job, Now());
  EXPECT_THAT(text, HasSubstr("3.00 KiB measured on the first stage, 5.00 KiB planned on the fullest\n"));
  EXPECT_EQ(text.find('%'), std::string::npos) << text;
}

TEST(JobDescription, FillsDefaultsWithoutPlan) {
  EXPECT_EQ(WorldSizeOf(v1::Job()), 1);
  EXPECT_NE(DescribeJob(v1::Job(), Now()).find("attempt:   0 of 1\n"), std::string::npos);
}

}  // namespace
}  // namespace fsdpd
