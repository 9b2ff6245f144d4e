#include "coordinator/job/job_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using View = JobIndex::View;

v1::Job MakeJob(const std::string& id, v1::JobState state, int ranks = 0) {
  v1::Job job;
  job.set_id(id);
  job.set_project("p");
  job.set_state(state);
  if (ranks > 0) job.add_placements()->set_ranks(ranks);
  return job;
}

TEST(JobIndex, MovesJobsBetweenViewsWithTheirState) {
  JobIndex index;
  index.Set(MakeJob("a", v1::JOB_STATE_QUEUED));
  EXPECT_THAT(index.In(View::kLaunched), IsEmpty());
  index.Set(MakeJob("a", v1::JOB_STATE_RUNNING, 2));
  EXPECT_THAT(index.In(View::kLaunched), ElementsAre("a"));
  index.Set(MakeJob("a", v1::JOB_STATE_PAUSING, 2));
  EXPECT_THAT(index.In(View::kLaunched), ElementsAre("a"));
  EXPECT_THAT(index.In(View::kPausing), ElementsAre("a"));
  v1::Job paused = MakeJob("a", v1::JOB_STATE_PAUSED, 2);
  index.Set(paused);
  EXPECT_THAT(index.In(View::kPausing), IsEmpty());
  EXPECT_THAT(index.In(View::kResuming), IsEmpty());
  paused.mutable_pause()->set_resumes_automatically(true);
  index.Set(paused);
  EXPECT_THAT(index.In(View::kResuming), ElementsAre("a"));
  index.Erase("a");
  EXPECT_THAT(index.In(View::kResuming), IsEmpty());
}

TEST(JobIndex, CountsHeldRanksByProject) {
  JobIndex index;
  index.Set(MakeJob("a", v1::JOB_STATE_RUNNING, 2));
  v1::Job measured = MakeJob("b", v1::JOB_STATE_PREFLIGHT);
  measured.add_reserved_nodes()->set_ranks(3);
  index.Set(measured);
  index.Set(MakeJob("c", v1::JOB_STATE_QUEUED, 4));  // Of its last attempt.
  EXPECT_THAT(index.held_ranks(), ElementsAre(Pair("p", 5)));
  index.Set(MakeJob("a", v1::JOB_STATE_QUEUED, 2));
  EXPECT_THAT(index.held_ranks(), ElementsAre(Pair("p", 3)));
  index.Erase("b");
  EXPECT_THAT(index.held_ranks(), IsEmpty());
}

TEST(JobIndex, FindsJobsThatWaitForOthers) {
  JobIndex index;
  v1::Job job = MakeJob("a", v1::JOB_STATE_QUEUED);
  job.add_after()->set_job("before");
  index.Set(job);
  EXPECT_THAT(index.In(View::kAwaiting), ElementsAre("a"));
  job.mutable_after(0)->set_succeeded(true);
  index.Set(job);
  EXPECT_THAT(index.In(View::kAwaiting), IsEmpty());
}

}  // namespace
}  // namespace fsdpd
