#include "coordinator/store/etcd_index.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/job/job_machine.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;

v1::Job MakeJob(int number, v1::JobState state = v1::JOB_STATE_SUCCEEDED) {
  v1::Job job;
  job.set_id(absl::StrCat("job-", number));
  job.set_request_id(absl::StrCat("request-", number));
  job.mutable_spec()->mutable_checkpoint()->set_dir(absl::StrCat("/runs/", number));
  job.set_state(state);
  job.set_create_unix_nanos(1000 + number);
  if (IsEnded(state)) job.set_end_unix_nanos(2000 + number);
  return job;
}

void Set(const v1::Job& job, EtcdIndex* index) { index->Set(job.id(), EntryOf(job)); }

EtcdIndex WithEnded(int count) {
  EtcdIndex index;
  for (int i = 0; i < count; ++i) Set(MakeJob(i), &index);
  return index;
}

std::vector<std::string> Ids(const EtcdSelection& selection) {
  std::vector<std::string> ids;
  for (const JobCursor& cursor : selection.ids) ids.push_back(cursor.id);
  return ids;
}

// Queries of SubmitJob, the newest page, a page in the middle, and the search for jobs outside the retention.
int64_t VisitedByAllQuestions(int ended) {
  EtcdIndex index = WithEnded(ended);
  EXPECT_EQ(index.IdOfRequest("request-7"), "job-7");
  EXPECT_FALSE(index.DirectoryHasAnother("/runs/7", "new"));
  JobQuery taken;
  taken.limit = 1;
  taken.states = LiveJobStates();
  taken.directory = "/runs/7";
  EXPECT_TRUE(index.IdsFor(taken).ids.empty());
  JobQuery live;
  live.states = LiveJobStates();
  EXPECT_TRUE(index.IdsFor(live).ids.empty());
  JobQuery page;
  EXPECT_EQ(index.IdsFor(page).ids.size(), 50u);
  page.after_cursor = true;
  page.cursor = {1000 + ended / 2, absl::StrCat("job-", ended / 2)};
  EXPECT_EQ(index.IdsFor(page).ids.size(), 50u);
  page.by_end = true;
  page.cursor.unix_nanos += 1000;
  EXPECT_EQ(index.IdsFor(page).ids.size(), 50u);
  EXPECT_TRUE(index.OutsideRetention(Retention{1'000'000}, absl::UnixEpoch(), 1000).empty());
  return index.visited();
}

// Regression: each query visited all stored jobs, under the lock that every write takes.
TEST(EtcdIndex, QueriesDoNotVisitEndedJobs) {
  EXPECT_EQ(VisitedByAllQuestions(50'000), VisitedByAllQuestions(500));
}

TEST(EtcdIndex, TruncatesPageIfMoreJobsMatch) {
  EtcdIndex index = WithEnded(3);
  JobQuery query;
  query.limit = 2;
  EtcdSelection selection = index.IdsFor(query);
  EXPECT_THAT(Ids(selection), ElementsAre("job-2", "job-1"));
  EXPECT_TRUE(selection.truncated);
  query.after_cursor = true;
  query.cursor = selection.ids.back();
  selection = index.IdsFor(query);
  EXPECT_THAT(Ids(selection), ElementsAre("job-0"));
  EXPECT_FALSE(selection.truncated);
  query.ascending = true;
  query.cursor = {1000, "job-0"};
  EXPECT_THAT(Ids(index.IdsFor(query)), ElementsAre("job-1", "job-2"));
}

TEST(EtcdIndex, ReplacesAndErasesEntryInEveryView) {
  EtcdIndex index;
  Set(MakeJob(1, v1::JOB_STATE_QUEUED), &index);
  EXPECT_TRUE(index.DirectoryHasAnother("/runs/1", "new"));
  EXPECT_FALSE(index.DirectoryHasAnother("/runs/1", "job-1"));
  Set(MakeJob(1), &index);
  EXPECT_FALSE(index.DirectoryHasAnother("/runs/1", "new"));
  JobQuery live;
  live.states = LiveJobStates();
  EXPECT_TRUE(index.IdsFor(live).ids.empty());
  EXPECT_THAT(index.OutsideRetention(Retention{0}, absl::UnixEpoch(), 10), ElementsAre("job-1"));
  index.Erase("job-1");
  EXPECT_EQ(index.IdOfRequest("request-1"), "");
  EXPECT_TRUE(index.IdsFor(JobQuery()).ids.empty());
  EXPECT_EQ(index.size(), 0u);
}

TEST(EtcdIndex, RetainsJobsThatEndedLast) {
  EtcdIndex index = WithEnded(4);
  EXPECT_THAT(index.OutsideRetention(Retention{2}, absl::UnixEpoch(), 10), ElementsAre("job-0", "job-1"));
  EXPECT_THAT(index.OutsideRetention(Retention{2}, absl::UnixEpoch(), 1), ElementsAre("job-0"));
  const Retention young{10, absl::Nanoseconds(10)};
  EXPECT_THAT(index.OutsideRetention(young, absl::FromUnixNanos(2012), 10), ElementsAre("job-0", "job-1"));
}

}  // namespace
}  // namespace fsdpd
