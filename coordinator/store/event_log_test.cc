#include "coordinator/store/event_log.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/job_machine.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

v1::Event OfNode(const std::string& node, absl::Time at = kNow) {
  v1::Event event;
  event.set_node(node);
  event.set_kind(v1::EVENT_KIND_CORDONED);
  event.set_unix_nanos(absl::ToUnixNanos(at));
  return event;
}

void Store(EventLog* log, const std::vector<const v1::Job*>& jobs, Events others, absl::Time now = kNow) {
  Events numbered = log->Number(jobs, std::move(others));
  const int64_t through = log->ForgetThrough(numbered, now);
  log->Append(std::move(numbered), through);
}

std::vector<int64_t> SequencesOf(const Events& events) {
  std::vector<int64_t> sequences;
  for (const v1::Event& event : events) sequences.push_back(event.sequence());
  return sequences;
}

std::vector<std::string> MessagesOf(const v1::Job& job) {
  std::vector<std::string> messages;
  for (const v1::Job::Event& event : job.events()) messages.push_back(event.message());
  return messages;
}

v1::Job JobWith(const std::string& id, const std::vector<std::string>& messages) {
  v1::Job job;
  job.set_id(id);
  for (const std::string& message : messages) AddEvent(v1::EVENT_KIND_NOTE, message, kNow, &job);
  return job;
}

TEST(EventLog, WhatIsWrittenAgainIsLoggedOnce) {
  EventLog log;
  v1::Job job = JobWith("a", {"one", "two"});
  Store(&log, {&job}, {});
  AddEvent(v1::EVENT_KIND_NOTE, "three", kNow, &job);
  Store(&log, {&job}, {OfNode("n")});
  EXPECT_THAT(log.Number({&job}, {}), IsEmpty());
  const auto page = log.Read({});
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(SequencesOf(page->events), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(page->events[2].message(), "three");
  EXPECT_EQ(page->events[2].job(), "a");
  EXPECT_EQ(page->events[3].node(), "n");
  EXPECT_EQ(page->cursor, 4);
  EXPECT_FALSE(page->more);
}

TEST(EventLog, AJobThatIsReadHasThoseOfTheLog) {
  EventLog log;
  v1::Job job = JobWith("a", {"one", "two"});
  const v1::Job other = JobWith("b", {"else"});
  Store(&log, {&job, &other}, {});
  v1::Job read;
  ASSERT_TRUE(read.ParseFromString(StoredBytes(job)));
  EXPECT_EQ(read.events_size(), 0);
  log.AddTo(&read);
  EXPECT_EQ(read.SerializeAsString(), job.SerializeAsString());
}

TEST(EventLog, AJobThatIsReadHasTheFirstAndTheNewestOfManyEvents) {
  EventLog log;
  v1::Job job = JobWith("a", {});
  for (int i = 0; i < 3 * kMaxJobEvents; ++i) {
    AddEvent(v1::EVENT_KIND_NOTE, absl::StrCat(i), kNow, &job);
    Store(&log, {&job}, {});
  }
  v1::Job read;
  ASSERT_TRUE(read.ParseFromString(StoredBytes(job)));
  log.AddTo(&read);
  EXPECT_EQ(MessagesOf(read), MessagesOf(job));
  EXPECT_EQ(log.newest(), 3 * kMaxJobEvents);
}

TEST(EventLog, EventsThatAnOlderReleaseStoredInTheJobMoveOverWhenItChanges) {
  v1::Job old;
  old.set_id("a");
  for (const char* message : {"one", "two"}) old.add_events()->set_message(message);
  NumberOldEvents(&old);
  EventLog log;
  log.AddTo(&old);
  EXPECT_THAT(MessagesOf(old), ElementsAre("one", "two"));
  AddEvent(v1::EVENT_KIND_NOTE, "three", kNow, &old);
  Store(&log, {&old}, {});
  v1::Job read;
  ASSERT_TRUE(read.ParseFromString(StoredBytes(old)));
  NumberOldEvents(&read);
  log.AddTo(&read);
  EXPECT_THAT(MessagesOf(read), ElementsAre("one", "two", "three"));
}

TEST(EventLog, TheOldestGoAndWhoWantsThemIsToldSo) {
  EventLog log(3);
  for (int i = 0; i < 5; ++i) Store(&log, {}, {OfNode(absl::StrCat(i))});
  EXPECT_EQ(log.oldest(), 3);
  EventQuery query;
  query.after = 1;
  const auto gone = log.Read(query);
  EXPECT_TRUE(absl::IsOutOfRange(gone.status()));
  EXPECT_THAT(gone.status().message(), HasSubstr("the oldest is 3"));
  query.after = 2;  // Nothing after it is gone.
  EXPECT_THAT(SequencesOf(log.Read(query)->events), ElementsAre(3, 4, 5));
  query.after = 0;
  EXPECT_THAT(SequencesOf(log.Read(query)->events), ElementsAre(3, 4, 5));
}

TEST(EventLog, WhatIsTooOldGoesWhenAnotherComes) {
  EventLog log;
  Store(&log, {}, {OfNode("a", kNow - kMaxEventAge - absl::Hours(1)), OfNode("b")}, kNow - absl::Hours(2));
  EXPECT_EQ(log.oldest(), 1);
  Store(&log, {}, {OfNode("c")});
  EXPECT_EQ(log.oldest(), 2);
}

TEST(EventLog, AWrongDateRemovesNothingAndOneThatStaysWrongOnlyALittle) {
  EventLog log;
  const absl::Time wrong = kNow + 2 * kMaxEventAge;
  for (int i = 0; i < 10; ++i) Store(&log, {}, {OfNode("a")});
  Store(&log, {}, {OfNode("b", wrong)}, wrong);
  EXPECT_EQ(log.oldest(), 1);
  Store(&log, {}, {OfNode("b", wrong)}, wrong);
  EXPECT_EQ(log.oldest(), 3);
  Store(&log, {}, {OfNode("c")});
  EXPECT_EQ(log.oldest(), 3);
}

TEST(EventLog, PagesOfAFilterNeitherSkipNorRepeat) {
  EventLog log;
  for (int i = 0; i < 10; ++i) Store(&log, {}, {OfNode(i % 3 == 0 ? "a" : "b")});
  EventQuery query;
  query.node = "a";
  query.limit = 2;
  std::vector<int64_t> seen;
  for (;;) {
    const auto page = log.Read(query);
    ASSERT_TRUE(page.ok());
    for (const int64_t sequence : SequencesOf(page->events)) seen.push_back(sequence);
    query.after = page->cursor;
    if (!page->more) break;
  }
  EXPECT_THAT(seen, ElementsAre(1, 4, 7, 10));
  EXPECT_EQ(query.after, 10);
}

TEST(EventLog, APageEndsEarlyWhereItsEventsAreLargeAndTheNextGoesOn) {
  EventLog log;
  for (int i = 0; i < 3; ++i) Store(&log, {}, {OfNode(std::string(1000, 'a'))});
  EventQuery query;
  query.max_bytes = 1500;
  EXPECT_THAT(SequencesOf(log.Read(query)->events), ElementsAre(1, 2));
  EXPECT_TRUE(log.Read(query)->more);
  query.after = log.Read(query)->cursor;
  EXPECT_THAT(SequencesOf(log.Read(query)->events), ElementsAre(3));
  query.after = 0;
  query.max_bytes = 1;
  EXPECT_THAT(SequencesOf(log.Read(query)->events), ElementsAre(1)) << "one at least";
}

TEST(EventLog, SequencesGrowOverLivesAndAboveThoseOfAStateThatWasPutBack) {
  EventLog first, second, restored;
  Store(&first, {}, {OfNode("a"), OfNode("b")});
  const Events stored = first.Read({})->events;
  second.Load(stored, 2);
  Store(&second, {}, {OfNode("c")});
  EXPECT_EQ(second.newest(), 3);
  restored.Load(stored, 1'000'000);
  Store(&restored, {}, {OfNode("c")});
  EXPECT_EQ(restored.newest(), 1'000'000);
  EventQuery query;
  query.after = 3;  // Of the life that is undone.
  EXPECT_THAT(SequencesOf(restored.Read(query)->events), ElementsAre(1'000'000));
}

TEST(EventLog, EventsOfAJobThatIsForgottenStay) {
  EventLog log;
  const v1::Job job = JobWith("a", {"one"});
  Store(&log, {&job}, {});
  log.ForgetJob("a");
  EventQuery query;
  query.job = "a";
  EXPECT_EQ(log.Read(query)->events.size(), 1u);
}

}  // namespace
}  // namespace fsdpd
