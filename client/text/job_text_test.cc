#include "client/text/job_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
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
  job.mutable_last_step()->set_step(200);
  job.mutable_last_step()->set_loss(2.441);
  return job;
}

absl::Time Now() { return absl::FromUnixSeconds(1065); }

TEST(JobText, TableAlignsColumns) {
  v1::Job queued;
  queued.set_id("b-1");
  queued.set_state(v1::JOB_STATE_QUEUED);
  queued.set_reason("waits for 4 ranks\x1b[2J");
  queued.mutable_spec()->mutable_train()->set_steps(9);
  EXPECT_EQ(JobTable({queued, EndedJob(v1::JOB_STATE_SUCCEEDED)}, Now()),
            "ID           STATE      STEP     LOSS    RANKS  AGE       REASON\n"
            "b-1          queued     0/9      -       1      -         waits for 4 ranks [2J\n"
            "tiny-k3x9q2  succeeded  200/200  2.4410  4      1 m 05 s\n");
}

TEST(JobText, TableTruncatesLongReason) {
  v1::Job job = EndedJob(v1::JOB_STATE_FAILED);
  std::string reason = "50 keys are missing:";
  for (int i = 0; i < 50; ++i) reason += "\n  key " + std::to_string(i);
  job.set_reason(reason);
  const std::string table = JobTable({job}, Now());
  EXPECT_THAT(table, HasSubstr("  key 3\n"));
  EXPECT_THAT(table, Not(HasSubstr("key 4")));
  EXPECT_THAT(table, HasSubstr("  and 46 more: fsdpctl describe tiny-k3x9q2\n"));
}

TEST(JobText, StepsOfEpochsAreUnknownUntilRanksReadTheData) {
  v1::Job job;
  job.mutable_spec()->mutable_train()->set_epochs(3);
  *job.mutable_resolved() = job.spec();
  EXPECT_EQ(StepText(job), "0/?");
  EXPECT_EQ(EpochText(job), "");
  job.mutable_resolved()->mutable_train()->set_steps(30);
  job.mutable_resolved()->mutable_train()->set_global_batch(4);
  job.mutable_last_step()->set_step(5);
  job.set_epoch_samples(40);
  EXPECT_EQ(StepText(job), "5/30");
  EXPECT_EQ(EpochText(job), "0.50/3");
}

TEST(JobText, StepIsThatOfCheckpointUntilNextReport) {
  v1::Job job = EndedJob(v1::JOB_STATE_RUNNING);
  job.add_checkpoints()->set_step(20);
  job.add_checkpoints()->set_step(30);
  EXPECT_THAT(JobTable({job}, Now()), HasSubstr("  200/200  "));
  job.clear_last_step();
  job.set_state(v1::JOB_STATE_QUEUED);
  job.mutable_restored()->set_step(10);  // Restored by the attempt that failed.
  EXPECT_THAT(JobTable({job}, Now()), HasSubstr("  30/200  "));
  job.set_state(v1::JOB_STATE_STARTING);
  job.clear_restored();
  EXPECT_THAT(JobTable({job}, Now()), HasSubstr("  30/200  "));
  job.mutable_restored()->set_step(20);  // The newer checkpoint could not be used.
  job.mutable_checkpoints()->RemoveLast();
  EXPECT_THAT(JobTable({job}, Now()), HasSubstr("  20/200  "));
  job.mutable_restored()->set_step(120);  // From another job: this one has no checkpoint yet.
  job.clear_checkpoints();
  EXPECT_THAT(JobTable({job}, Now()), HasSubstr("  120/200  "));
}

}  // namespace
}  // namespace fsdpd
