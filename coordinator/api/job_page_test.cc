#include "coordinator/api/job_page.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

v1::Job MakeJob(const std::string& id, int64_t created, v1::JobState state, int64_t revision) {
  v1::Job job;
  job.set_id(id);
  job.set_create_unix_nanos(created);
  job.set_state(state);
  job.set_revision(revision);
  return job;
}

std::shared_ptr<const v1::Job> Live(const v1::Job& job) { return std::make_shared<const v1::Job>(job); }

std::string IdsOf(const ShownPage& page) {
  std::string ids;
  for (const v1::Job& job : page.jobs) ids += job.id();
  return ids;
}

TEST(JobPage, ShowsUnstoredJobsLikeAQueryForOneJob) {
  JobPage stored;
  stored.jobs = {MakeJob("b", 2, v1::JOB_STATE_RUNNING, 4), MakeJob("a", 1, v1::JOB_STATE_RUNNING, 4)};
  v1::Job unstored = MakeJob("b", 2, v1::JOB_STATE_CANCELLING, 5);
  unstored.set_reason("stopping the ranks; not on disk yet: the disk is full");
  // The other job was read before it was stored.
  const ShownPage page =
      AsShown({}, stored, {Live(unstored), Live(MakeJob("a", 1, v1::JOB_STATE_STARTING, 3))});
  ASSERT_EQ(IdsOf(page), "ba");
  EXPECT_EQ(page.jobs[0].state(), v1::JOB_STATE_CANCELLING);
  EXPECT_EQ(page.jobs[0].reason(), unstored.reason());
  EXPECT_EQ(page.jobs[1].state(), v1::JOB_STATE_RUNNING);
}

TEST(JobPage, StateQueryUsesTheShownState) {
  const v1::Job unstored = MakeJob("b", 2, v1::JOB_STATE_CANCELLING, 5);
  JobQuery query;
  query.states = {v1::JOB_STATE_RUNNING};
  JobPage stored;
  stored.jobs = {MakeJob("b", 2, v1::JOB_STATE_RUNNING, 4), MakeJob("a", 1, v1::JOB_STATE_RUNNING, 4)};
  EXPECT_EQ(IdsOf(AsShown(query, stored, {Live(unstored)})), "a");
  query.states = {v1::JOB_STATE_CANCELLING};
  stored.jobs = {MakeJob("c", 3, v1::JOB_STATE_CANCELLING, 9)};
  EXPECT_EQ(IdsOf(AsShown(query, stored, {Live(unstored)})), "cb");
}

TEST(JobPage, ProjectQueryHidesLiveJobsOfOthers) {
  v1::Job ours = MakeJob("a", 1, v1::JOB_STATE_CANCELLING, 5),
          theirs = MakeJob("b", 2, v1::JOB_STATE_CANCELLING, 5);
  ours.set_project("vision");
  theirs.set_project("nlp");
  JobQuery query;
  query.project = "vision";
  query.states = {v1::JOB_STATE_CANCELLING};
  EXPECT_EQ(IdsOf(AsShown(query, {}, {Live(ours), Live(theirs)})), "a");
}

TEST(JobPage, StatesAndOrderUseTheShownState) {
  v1::Job ended = MakeJob("a", 1, v1::JOB_STATE_FAILED, 5);
  ended.set_end_unix_nanos(7);
  JobQuery query;
  query.by_end = query.ascending = true;
  query.states = {v1::JOB_STATE_FAILED};
  JobPage stored;
  stored.jobs = {MakeJob("b", 2, v1::JOB_STATE_FAILED, 4)};
  stored.jobs[0].set_end_unix_nanos(9);
  EXPECT_EQ(IdsOf(AsShown(query, stored, {Live(ended)})), "ab") << "it is still stored as RUNNING";
  stored.more = true;
  stored.end = {5, "x"};
  stored.jobs.clear();
  EXPECT_EQ(IdsOf(AsShown(query, stored, {Live(ended)})), "") << "it belongs to a later page";
  EXPECT_EQ(AsShown(query, stored, {Live(ended)}).end.id, "x");
}

// Without states, it was listed at its stored position: after all ended jobs.
TEST(JobPage, StoredLiveShownEndedIsListedByItsEnd) {
  v1::Job ended = MakeJob("e", 1, v1::JOB_STATE_FAILED, 5), other = MakeJob("o", 2, v1::JOB_STATE_FAILED, 5);
  ended.set_end_unix_nanos(7);
  other.set_end_unix_nanos(5);
  const v1::Job as_stored = MakeJob("e", 1, v1::JOB_STATE_RUNNING, 4);
  JobQuery query;
  query.by_end = true;
  query.limit = 1;
  JobPage first;
  first.jobs = {other};
  first.more = true;
  first.end = PlaceOf(query, other);
  const ShownPage shown = AsShown(query, first, {Live(ended)});
  EXPECT_EQ(IdsOf(shown), "e");
  ASSERT_TRUE(shown.more);
  query.after_cursor = true;
  query.cursor = shown.end;
  EXPECT_EQ(IdsOf(AsShown(query, first, {Live(ended)})), "o");
  query.cursor = first.end;
  JobPage last;
  last.jobs = {as_stored};
  EXPECT_EQ(IdsOf(AsShown(query, last, {Live(ended)})), "") << "it was on the first page";
}

TEST(JobPage, EachJobIsOnExactlyOnePage) {
  const std::vector<std::shared_ptr<const v1::Job>> live = {
      Live(MakeJob("d", 4, v1::JOB_STATE_CANCELLING, 5)), Live(MakeJob("b", 2, v1::JOB_STATE_CANCELLING, 5))};
  JobQuery query;
  query.limit = 2;
  query.states = {v1::JOB_STATE_CANCELLING};
  JobPage stored;
  stored.jobs = {MakeJob("e", 5, v1::JOB_STATE_CANCELLING, 9), MakeJob("c", 3, v1::JOB_STATE_CANCELLING, 9)};
  stored.more = true;
  stored.end = {3, "c"};
  const ShownPage first = AsShown(query, stored, live);
  EXPECT_EQ(IdsOf(first), "ed");
  ASSERT_TRUE(first.more);
  query.after_cursor = true;
  query.cursor = first.end;
  stored.jobs = {MakeJob("c", 3, v1::JOB_STATE_CANCELLING, 9), MakeJob("a", 1, v1::JOB_STATE_CANCELLING, 9)};
  stored.more = false;
  const ShownPage second = AsShown(query, stored, live);
  EXPECT_EQ(IdsOf(second), "cb");
  ASSERT_TRUE(second.more);
  query.cursor = second.end;
  stored.jobs = {MakeJob("a", 1, v1::JOB_STATE_CANCELLING, 9)};
  const ShownPage last = AsShown(query, stored, live);
  EXPECT_EQ(IdsOf(last), "a");
  EXPECT_FALSE(last.more);
  // A page without matches still has an end.
  query.states = {v1::JOB_STATE_RUNNING};
  query.after_cursor = false;
  stored.jobs = {MakeJob("d", 4, v1::JOB_STATE_RUNNING, 4)};
  stored.more = true;
  stored.end = {4, "d"};
  const ShownPage none = AsShown(query, stored, live);
  EXPECT_EQ(IdsOf(none), "");
  EXPECT_TRUE(none.more);
  EXPECT_EQ(none.end.id, "d");
}

}  // namespace
}  // namespace fsdpd
