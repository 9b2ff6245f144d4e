#include "coordinator/job/directory_owner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::Job Saving(const std::string& id, v1::JobState state, int64_t saved = 0) {
  v1::Job job;
  job.set_id(id);
  job.set_state(state);
  job.mutable_spec()->mutable_checkpoint()->set_dir("/runs/7/");
  if (saved > 0) job.add_checkpoints()->set_step(saved);
  return job;
}

TEST(JobDirectory, IgnoresDifferencesOfSpelling) {
  v1::JobSpec spec;
  EXPECT_THAT(DirectoryOf(spec), IsEmpty());
  for (const char* dir : {"/runs/7", "/runs/7/", "//runs///7", "/runs/./7/."}) {
    spec.mutable_checkpoint()->set_dir(dir);
    EXPECT_EQ(DirectoryOf(spec), "/runs/7") << dir;
  }
  spec.mutable_checkpoint()->set_dir("/runs/.7");
  EXPECT_EQ(DirectoryOf(spec), "/runs/.7");
  spec.mutable_checkpoint()->set_dir("/");
  EXPECT_EQ(DirectoryOf(spec), "/");
}

TEST(JobDirectory, TakenDirectoryNamesOwnerAndFix) {
  const Violation paused = DirectoryIsTaken(Saving("a", v1::JOB_STATE_PAUSED));
  EXPECT_EQ(paused.field, "checkpoint.dir");
  EXPECT_THAT(paused.reason, HasSubstr("/runs/7 belongs to job a, which is paused"));
  EXPECT_THAT(paused.fix, HasSubstr("fsdpctl cancel a --wait"));
  EXPECT_THAT(DirectoryIsTaken(Saving("a", v1::JOB_STATE_CANCELLING)).fix,
              HasSubstr("wait until it has ended"));
}

TEST(JobDirectory, LiveOwnerPreventsRetry) {
  const v1::Job failed = Saving("a", v1::JOB_STATE_FAILED, 9);
  EXPECT_THAT(WhyDirectoryIsLost(failed, {failed}), IsEmpty());
  EXPECT_THAT(WhyDirectoryIsLost(failed, {failed, Saving("b", v1::JOB_STATE_QUEUED)}),
              HasSubstr("belongs to job b, which is queued"));
}

TEST(JobDirectory, OwnerWithLaterStepsPreventsRetry) {
  const v1::Job failed = Saving("a", v1::JOB_STATE_FAILED, 9);
  const std::string why = WhyDirectoryIsLost(failed, {Saving("b", v1::JOB_STATE_SUCCEEDED, 12)});
  EXPECT_THAT(why, HasSubstr("job b has taken its checkpoint.dir /runs/7 and saved step 12"));
  EXPECT_THAT(why, HasSubstr("--from a@9"));
  EXPECT_THAT(why, HasSubstr("fsdpctl delete b"));
  for (const int64_t earlier : {0, 5, 9})
    EXPECT_THAT(WhyDirectoryIsLost(failed, {Saving("b", v1::JOB_STATE_FAILED, earlier)}), IsEmpty());
  const v1::Job fresh = Saving("a", v1::JOB_STATE_FAILED);
  EXPECT_THAT(WhyDirectoryIsLost(fresh, {Saving("b", v1::JOB_STATE_FAILED, 3)}),
              HasSubstr("after the start of this job"));
}

TEST(JobDirectory, EarlierOwnerDoesNotPreventRetry) {
  v1::Job earlier = Saving("a", v1::JOB_STATE_SUCCEEDED, 100);
  earlier.set_create_unix_nanos(1);
  earlier.mutable_checkpoints(0)->set_unix_nanos(5);
  earlier.set_end_unix_nanos(6);
  v1::Job failed = Saving("b", v1::JOB_STATE_FAILED, 20);
  failed.set_create_unix_nanos(10);
  failed.set_end_unix_nanos(19);
  EXPECT_THAT(WhyDirectoryIsLost(failed, {failed, earlier}), IsEmpty());
  earlier.mutable_checkpoints(0)->set_unix_nanos(25);
  EXPECT_THAT(WhyDirectoryIsLost(failed, {failed, earlier}), HasSubstr("job a has taken"))
      << "it was retried since";
  earlier.mutable_checkpoints(0)->set_unix_nanos(5);
  EXPECT_THAT(WhyDirectoryIsLost(earlier, {failed, earlier}), IsEmpty()) << "which has saved less";
  failed.mutable_checkpoints(0)->set_step(120);
  EXPECT_THAT(WhyDirectoryIsLost(earlier, {failed, earlier}), HasSubstr("job b has taken"));
}

TEST(JobDirectory, JobThatLoadedTheOthersCheckpointMayBeRetried) {
  v1::Job failed = Saving("a", v1::JOB_STATE_FAILED);
  failed.mutable_spec()->mutable_checkpoint()->set_load("/runs/7");
  EXPECT_THAT(WhyDirectoryIsLost(failed, {Saving("b", v1::JOB_STATE_CANCELLED, 12)}), IsEmpty());
}

}  // namespace
}  // namespace fsdpd
