#include "coordinator/store/event_log.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "base/seeds.h"
#include "coordinator/job/job_machine.h"

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
  log->Forget(log->Thin(SIZE_MAX));
}

Events EventsOf(const EventLog& log, const EventQuery& query) {
  const absl::StatusOr<EventPage> page = log.Read(query);
  EXPECT_TRUE(page.ok()) << page.status();
  return page.ok() ? page->events : Events();
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

// Regression: a new leader's clock was an hour behind, and its events were dated before their causes.
TEST(EventLog, DatesDoNotPrecedeLoadedDates) {
  EventLog before;
  Store(&before, {}, {OfNode("n")});
  EventLog log;
  log.Load(EventsOf(before, {}), 2);
  Store(&log, {}, {OfNode("n", kNow - absl::Hours(1)), OfNode("n", kNow + absl::Hours(1)), OfNode("n")});
  std::vector<int64_t> dates;
  for (const v1::Event& event : EventsOf(log, {}))
    dates.push_back(event.unix_nanos() - absl::ToUnixNanos(kNow));
  EXPECT_THAT(dates, ElementsAre(0, 0, absl::ToInt64Nanoseconds(absl::Hours(1)), 0))
      << "events of this run keep their dates: they may be stored late";
}

// Regression: until the next restart a live job's events had other dates than the same events in ListEvents.
TEST(EventLog, DateMatchesStoredDates) {
  EventLog before;
  v1::Job job = JobWith("a", {"one"});
  Store(&before, {&job}, {OfNode("n", kNow + absl::Hours(1))});
  EventLog log;
  log.Load(EventsOf(before, {}), 3);
  AddEvent(v1::EVENT_KIND_NOTE, "two", kNow, &job);
  log.Date(&job);
  EXPECT_EQ(job.events(0).unix_nanos(), absl::ToUnixNanos(kNow)) << "already stored";
  EXPECT_EQ(job.events(1).unix_nanos(), absl::ToUnixNanos(kNow + absl::Hours(1)));
  EXPECT_EQ(log.Number({&job}, {})[0].unix_nanos(), job.events(1).unix_nanos());
}

TEST(EventLog, IgnoresLoadedDateFarInFuture) {
  EventLog log;
  log.Load({OfNode("n", kNow + absl::Hours(1000))}, 2);
  EXPECT_EQ(log.Number({}, {OfNode("n")})[0].unix_nanos(), absl::ToUnixNanos(kNow));
}

TEST(EventLog, RepeatedWriteAddsEventsOnce) {
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

TEST(EventLog, AddToRestoresEventsOfJob) {
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

TEST(EventLog, AddToRestoresFirstAndNewestEvents) {
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

TEST(EventLog, MovesEventsStoredInJobToLog) {
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

TEST(EventLog, DropsOldestAndReportsOutOfRange) {
  EventLog log(3);
  for (int i = 0; i < 5; ++i) Store(&log, {}, {OfNode(absl::StrCat(i))});
  EXPECT_EQ(log.oldest(), 3);
  EventQuery query;
  query.after = 1;
  const auto gone = log.Read(query);
  EXPECT_TRUE(absl::IsOutOfRange(gone.status()));
  EXPECT_THAT(gone.status().message(), HasSubstr("the oldest is 3"));
  query.after = 2;  // All later events are retained.
  EXPECT_THAT(SequencesOf(log.Read(query)->events), ElementsAre(3, 4, 5));
  query.after = 0;
  EXPECT_THAT(SequencesOf(log.Read(query)->events), ElementsAre(3, 4, 5));
}

TEST(EventLog, DropsByAgeOnAppend) {
  EventLog log;
  Store(&log, {}, {OfNode("a", kNow - kMaxEventAge - absl::Hours(1)), OfNode("b")}, kNow - absl::Hours(2));
  EXPECT_EQ(log.oldest(), 1);
  Store(&log, {}, {OfNode("c")});
  EXPECT_EQ(log.oldest(), 2);
}

TEST(EventLog, WrongClockDropsFewEvents) {
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

TEST(EventLog, FilteredPagesHaveEachEventOnce) {
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

TEST(EventLog, PageEndsAtByteLimit) {
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
  EXPECT_THAT(SequencesOf(log.Read(query)->events), ElementsAre(1)) << "at least one";
}

TEST(EventLog, SequencesGrowAcrossRestartsAndRestores) {
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
  query.after = 3;  // A sequence of the run that the restore reverted.
  EXPECT_THAT(SequencesOf(restored.Read(query)->events), ElementsAre(1'000'000));
}

TEST(EventLog, RetainsEventsOfDeletedJob) {
  EventLog log;
  const v1::Job job = JobWith("a", {"one"});
  Store(&log, {&job}, {});
  log.ForgetJob("a");
  EventQuery query;
  query.job = "a";
  EXPECT_EQ(log.Read(query)->events.size(), 1u);
}

// Adds and stores a note, with or without a change of state.
void Note(EventLog* log, v1::Job* job, bool change = false) {
  if (change)
    job->set_state(job->state() == v1::JOB_STATE_RUNNING ? v1::JOB_STATE_QUEUED : v1::JOB_STATE_RUNNING);
  AddEvent(v1::EVENT_KIND_NOTE, "", kNow, job);
  Store(log, {job}, {});
}

std::vector<int64_t> NumbersOf(const EventLog& log, const std::string& job) {
  EventQuery query;
  query.job = job;
  query.limit = INT32_MAX;
  std::vector<int64_t> numbers;
  for (const v1::Event& event : EventsOf(log, query)) {
    if (event.number() > 0) numbers.push_back(event.number());
  }
  return numbers;
}

TEST(EventLog, FlappingJobDoesNotDisplaceOthers) {
  EventLog log(140);
  v1::Job flaps = JobWith("flaps", {"first"}), quiet = JobWith("quiet", {"one", "two", "three"});
  Store(&log, {&quiet, &flaps}, {OfNode("n")});
  for (int i = 0; i < 500; ++i) Note(&log, &flaps);
  EXPECT_THAT(NumbersOf(log, "quiet"), ElementsAre(1, 2, 3));
  EventQuery query;
  query.node = "n";
  EXPECT_EQ(log.Read(query)->events.front().kind(), v1::EVENT_KIND_CORDONED);
  const std::vector<int64_t> retained = NumbersOf(log, "flaps");
  EXPECT_EQ(retained.front(), 1);
  EXPECT_EQ(retained.back(), 501);
  EXPECT_GT(retained.size(), 30u);
  query.node = "";
  query.job = "flaps";
  int64_t forgotten = 0;
  for (const v1::Event& event : EventsOf(log, query)) forgotten += event.deleted_events();
  EXPECT_EQ(forgotten + static_cast<int64_t>(retained.size()), 501);
  EXPECT_EQ(log.oldest(), 1) << "events of other owners are retained";
}

// Regression: jobs with five events each displaced all but nine events of a paused job.
TEST(EventLog, LiveJobRetainsEventsAcrossRestarts) {
  constexpr size_t kMax = 1000;
  EventLog log(kMax);
  v1::Job lives = JobWith("lives", {"first"});
  Store(&log, {&lives}, {});
  for (int i = 0; i < 900; ++i) Note(&log, &lives, /*change=*/i % 3 == 0);
  for (int i = 0; i < 350; ++i) {
    v1::Job other = JobWith(absl::StrCat("other-", i), {"one", "two", "three", "four"});
    other.set_state(v1::JOB_STATE_SUCCEEDED);
    AddEvent(v1::EVENT_KIND_NOTE, "over", kNow, &other);
    Store(&log, {&other}, {});
  }
  EXPECT_THAT(NumbersOf(log, "other-349"), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(NumbersOf(log, "other-0"), IsEmpty());
  EventQuery whole;
  whole.limit = INT32_MAX;
  const Events retained = EventsOf(log, whole);
  EXPECT_LE(retained.size(), kMax + kMax / 100);
  EventLog next(kMax);
  next.Load(retained, 1);
  for (const EventLog* life : {&log, &next}) {
    v1::Job read;
    ASSERT_TRUE(read.ParseFromString(StoredBytes(lives)));
    life->AddTo(&read);
    EXPECT_EQ(read.SerializeAsString(), lives.SerializeAsString());
  }
  lives.set_state(v1::JOB_STATE_SUCCEEDED);
  Note(&log, &lives);
  for (int i = 0; i < 1100; ++i) Store(&log, {}, {OfNode(absl::StrCat(i))});
  EXPECT_THAT(NumbersOf(log, "lives"), IsEmpty()) << "the job has ended";
}

TEST(EventLog, RecordsOneSharedGap) {
  EventLog log(10);
  v1::Job lives = JobWith("lives", {"one", "two"});
  Store(&log, {&lives}, {});
  for (int i = 0; i < 20; ++i) Store(&log, {}, {OfNode(absl::StrCat(i))});
  EventQuery query;
  EXPECT_EQ(SequencesOf(EventsOf(log, query)), (std::vector<int64_t>{1, 2, 15, 16, 17, 18, 19, 20, 21, 22}));
  query.after = 1;
  query.node = "19";
  const Events events = EventsOf(log, query);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind(), v1::EVENT_KIND_EVENTS_DELETED);
  EXPECT_EQ(events[0].job() + events[0].node(), "");
  EXPECT_EQ(events[0].deleted_events(), 13);
  EXPECT_EQ(events[0].message(), "13 earlier events of ended jobs and of nodes were dropped");
  query.after = 15;
  EXPECT_EQ(EventsOf(log, query).size(), 1u);
}

// Regression: writers waited until a slow filter had examined all events.
TEST(EventLog, StoresEventsWhileFilterRuns) {
  for (const bool newest_first : {false, true}) {
    EventLog log;
    for (int i = 0; i < 1000; ++i) Store(&log, {}, {OfNode("n")});
    EventQuery query;
    query.newest_first = newest_first;
    query.limit = INT32_MAX;
    int asked = 0;
    query.filter = [&](const v1::Event& event) {
      if (++asked <= 3) Store(&log, {}, {OfNode("n")});
      return event.sequence() % 100 == 0;
    };
    EXPECT_EQ(EventsOf(log, query).size(), 10u);
    EXPECT_EQ(asked, newest_first ? 1000 : 1003) << "oldest first reaches the new events";
  }
}

TEST(EventLog, PageEndsAtExaminedLimit) {
  EventLog log;
  for (int i = 0; i < 1000; ++i) Store(&log, {}, {OfNode("n")});
  EventQuery query;
  query.max_examined = 400;
  query.filter = [](const v1::Event& event) { return event.sequence() == 900; };
  for (const bool newest_first : {false, true}) {
    query.newest_first = newest_first;
    std::vector<size_t> pages;
    for (bool more = true; more;) {
      const absl::StatusOr<EventPage> page = log.Read(query);
      ASSERT_TRUE(page.ok()) << page.status();
      pages.push_back(page->events.size());
      (newest_first ? query.before : query.after) = page->cursor;
      more = page->more;
    }
    EXPECT_EQ(pages, newest_first ? std::vector<size_t>({1, 0, 0}) : std::vector<size_t>({0, 0, 1}));
    query.after = 0;
  }
}

TEST(EventLog, RetainsStateChangesLonger) {
  EventLog log(60);
  v1::Job job = JobWith("a", {"first"});
  std::vector<int64_t> changes = {1};
  for (int i = 1; i <= 400; ++i) {
    Note(&log, &job, i % 20 == 0);
    if (i % 20 == 0) changes.push_back(job.event_count());
  }
  EXPECT_THAT(NumbersOf(log, "a"), ::testing::IsSupersetOf(changes));
  for (int i = 0; i < 400; ++i) Note(&log, &job, /*change=*/true);
  const std::vector<int64_t> retained = NumbersOf(log, "a");
  EXPECT_LE(retained.size(), 60u) << "state changes are bounded too";
  EXPECT_EQ(retained.front(), 1);
}

TEST(EventLog, GapIsReadAtItsSequence) {
  EventLog log(20);
  v1::Job job = JobWith("a", {"first"});
  for (int i = 0; i < 100; ++i) Note(&log, &job);
  EventQuery query;
  query.after = 1;
  const Events events = log.Read(query)->events;
  ASSERT_EQ(events[0].kind(), v1::EVENT_KIND_EVENTS_DELETED);
  EXPECT_EQ(events[0].job(), "a");
  EXPECT_EQ(events[0].number(), 0);
  EXPECT_EQ(events[0].deleted_events(), events[1].number() - 2);
  EXPECT_THAT(events[0].message(), HasSubstr("earlier events were dropped"));
  query.node = "n";
  EXPECT_EQ(log.Read(query)->events.size(), 1u) << "a dropped event may have named the node";
  query.node = "";
  query.job = "b";
  EXPECT_THAT(log.Read(query)->events, IsEmpty());
  query.job = "";
  query.filter = [](const v1::Event&) { return false; };
  EXPECT_EQ(log.Read(query)->events.size(), 1u);
  query.after = events[0].sequence();
  EXPECT_THAT(log.Read(query)->events, IsEmpty());
  v1::Job read;
  read.set_id("a");
  log.AddTo(&read);
  EXPECT_EQ(read.events(0).number(), 1);
  EXPECT_EQ(read.events(1).number(), events[1].number()) << "a gap is not an event of the job";
}

TEST(EventLog, NewestFirstPagesReachOldest) {
  EventLog log;
  for (int i = 0; i < 7; ++i) Store(&log, {}, {OfNode(i % 2 == 0 ? "a" : "b")});
  EventQuery query;
  query.newest_first = true;
  query.node = "a";
  query.limit = 2;
  EventPage page = *log.Read(query);
  EXPECT_THAT(SequencesOf(page.events), ElementsAre(7, 5));
  EXPECT_TRUE(page.more);
  query.before = page.cursor;
  page = *log.Read(query);
  EXPECT_THAT(SequencesOf(page.events), ElementsAre(3, 1));
  query.before = page.cursor;
  EXPECT_FALSE(page.more);
  EXPECT_THAT(log.Read(query)->events, IsEmpty());
  query.before = 0;
  query.after = 5;
  EXPECT_THAT(SequencesOf(log.Read(query)->events), ElementsAre(7));
  EXPECT_FALSE(log.Read(query)->more);
  query.before = 5;
  EXPECT_THAT(log.Read(query)->events, IsEmpty());
}

// A reader that resumes from a cursor at its own pace.
struct Reader {
  EventQuery query;
  std::set<int64_t> seen;
  std::map<std::string, int64_t> gaps;  // Sequence of the newest gap by job or node.
  int64_t from = 0;                     // The oldest event when it last began to read.
};

std::string OwnerOf(const v1::Event& event) { return event.job() + "/" + event.node(); }

void ReadPage(const EventLog& log, Reader* reader) {
  if (reader->query.after == 0) reader->from = log.oldest();
  const auto page = log.Read(reader->query);
  if (!page.ok()) {
    reader->query.after = 0;
    reader->seen.clear();
    return;
  }
  for (const v1::Event& event : page->events) {
    ASSERT_GT(event.sequence(), reader->query.after);
    if (event.kind() == v1::EVENT_KIND_EVENTS_DELETED) {
      reader->gaps[OwnerOf(event)] = event.sequence();
    } else {
      ASSERT_TRUE(reader->seen.insert(event.sequence()).second) << "read twice: " << event.sequence();
    }
  }
  reader->query.after = page->cursor;
}

TEST(EventLog, ReadersGetEachEventOnceOrGap) {
  for (int seed = 1; seed <= Seeds(200); ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const auto below = [&](uint64_t n) { return static_cast<int>(random() % n); };
    auto log = std::make_unique<EventLog>(20 + below(60));
    std::vector<v1::Job> jobs;
    for (int i = 0; i < 4; ++i) jobs.push_back(JobWith(absl::StrCat("j", i), {}));
    std::map<int64_t, std::string> all;  // Owner of each event, by sequence.
    std::vector<Reader> readers(3);
    for (Reader& reader : readers) reader.query.limit = 1 + below(20);
    for (int i = 0; i < 400; ++i) {
      const int64_t newest = log->newest();
      if (below(3) > 0) {
        v1::Job& job = jobs[static_cast<size_t>(below(2) == 0 ? 0 : below(4))];
        if (below(10) == 0) job.set_state(v1::JOB_STATE_SUCCEEDED);
        Note(log.get(), &job, below(4) == 0);
      } else {
        Store(log.get(), {}, {OfNode(absl::StrCat("n", below(40)))});
      }
      EventQuery last;
      last.after = newest;
      for (const v1::Event& event : EventsOf(*log, last)) all[event.sequence()] = OwnerOf(event);
      if (below(50) == 0) {  // A restart.
        EventQuery whole;
        whole.limit = INT32_MAX;
        auto next = std::make_unique<EventLog>(20 + below(60));
        next->Load(EventsOf(*log, whole), 1);
        log = std::move(next);
      }
      for (Reader& reader : readers) {
        if (below(4) == 0) ReadPage(*log, &reader);
        if (HasFatalFailure()) return;
      }
    }
    for (Reader& reader : readers) {
      reader.query.limit = INT32_MAX;
      for (int i = 0; i < 2; ++i) ReadPage(*log, &reader);
      if (HasFatalFailure()) return;
      EventQuery whole;
      whole.limit = INT32_MAX;
      for (const auto& [sequence, owner] : all) {
        const bool reported =
            reader.seen.count(sequence) > 0 || sequence <= reader.gaps[owner] || sequence <= reader.gaps["/"];
        ASSERT_TRUE(reported || sequence < reader.from)
            << "seed " << seed << ": event " << sequence << " of " << owner;
      }
      for (const v1::Event& event : EventsOf(*log, whole)) {
        ASSERT_TRUE(event.kind() == v1::EVENT_KIND_EVENTS_DELETED || reader.seen.count(event.sequence()) > 0)
            << "seed " << seed << ": event " << event.sequence() << " is retained, but was not read";
      }
    }
  }
}

}  // namespace
}  // namespace fsdpd
