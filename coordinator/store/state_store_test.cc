// Contract of state_store.h, tested for every implementation.
#include "coordinator/store/state_store.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "base/temp_dir.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/store/etcd_store.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/testing/etcd_server.h"

namespace fsdpd {
namespace {

// Opens the stores of one test's state, one at a time.
class StoreFactory {
 public:
  virtual ~StoreFactory() = default;
  virtual std::shared_ptr<StateStore> Open(size_t max_events) = 0;
};

class SqliteFactory : public StoreFactory {
 public:
  std::shared_ptr<StateStore> Open(size_t max_events) override {
    auto store = SqliteStore::Open(dir_.path(), max_events);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

 private:
  const TempDir dir_;
};

class EtcdFactory : public StoreFactory {
 public:
  EtcdFactory() : prefix_(absl::StrCat("/test", ++factories_, "/")) {
    static const EtcdServer* const server = new EtcdServer;  // Ends with this process.
    auto client = EtcdClient::Make({{server->address()}, {}}, absl::Now());
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  std::shared_ptr<StateStore> Open(size_t max_events) override {
    Leadership::Options options;
    options.prefix = prefix_;
    options.address = "127.0.0.1:1";
    options.lease = absl::Seconds(60);
    auto taken = Leadership::TryTake(client_.get(), options, [] {});
    EXPECT_TRUE(taken.ok() && *taken != nullptr) << taken.status();
    const std::shared_ptr<Leadership> leadership = *std::move(taken);
    auto store = EtcdStore::Open(client_.get(), prefix_, leadership.get(), max_events);
    EXPECT_TRUE(store.ok()) << store.status();
    return std::shared_ptr<StateStore>(store->release(), [leadership](StateStore* it) { delete it; });
  }

 private:
  static inline int factories_ = 0;
  const std::string prefix_;
  std::unique_ptr<EtcdClient> client_;
};

v1::Job MakeJob(const std::string& id, int64_t create, v1::JobState state = v1::JOB_STATE_QUEUED) {
  v1::Job job;
  job.set_id(id);
  job.set_state(state);
  job.set_create_unix_nanos(create);
  job.mutable_spec()->set_name("n");
  return job;
}

v1::Job SavingJob(const std::string& id, int64_t create, v1::JobState state, const std::string& dir) {
  v1::Job job = MakeJob(id, create, state);
  job.mutable_spec()->mutable_checkpoint()->set_dir(dir);
  return job;
}

v1::Job Ended(const std::string& id, int64_t create, int64_t end) {
  v1::Job job = MakeJob(id, create, v1::JOB_STATE_FAILED);
  job.set_end_unix_nanos(end);
  return job;
}

class StateStoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  StateStoreTest() {
    if (GetParam() == "sqlite") factory_ = std::make_unique<SqliteFactory>();
    if (GetParam() == "etcd") factory_ = std::make_unique<EtcdFactory>();
  }
  std::shared_ptr<StateStore> Open(size_t max_events = kMaxEvents) { return factory_->Open(max_events); }

 private:
  std::unique_ptr<StoreFactory> factory_;
};

INSTANTIATE_TEST_SUITE_P(All, StateStoreTest, ::testing::Values("sqlite", "etcd"),
                         [](const auto& info) { return info.param; });

TEST_P(StateStoreTest, RetainsJobsAndIncreasesGenerationOnReopen) {
  int64_t generation = 0;
  {
    auto store = Open();
    generation = store->generation();
    ASSERT_TRUE(store->Insert(MakeJob("a", 1)).ok());
    v1::Job changed = MakeJob("a", 1, v1::JOB_STATE_RUNNING);
    changed.set_reason("all ranks reported");
    ASSERT_TRUE(store->Update(changed).ok());
  }
  auto store = Open();
  EXPECT_GT(store->generation(), generation);
  const auto job = store->Get("a");
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->reason(), "all ranks reported");
  EXPECT_EQ(store->LiveJobs()->size(), 1u);
}

v1::Event OfNode(const std::string& node) {
  v1::Event event;
  event.set_node(node);
  event.set_kind(v1::EVENT_KIND_CORDONED);
  return event;
}

// Events as "job/number" or "node", in order.
std::vector<std::string> EventsIn(const StateStore& store) {
  std::vector<std::string> seen;
  const auto page = store.events().Read({});
  EXPECT_TRUE(page.ok()) << page.status();
  int64_t last = 0;
  for (const v1::Event& event : page->events) {
    EXPECT_GT(event.sequence(), last);
    last = event.sequence();
    seen.push_back(event.number() > 0 ? absl::StrCat(event.job(), "/", event.number()) : event.node());
  }
  return seen;
}

TEST_P(StateStoreTest, StoresEventsWithTheirChange) {
  v1::Job job = MakeJob("a", 1), other = MakeJob("b", 2);
  AddEvent(v1::EVENT_KIND_SUBMITTED, "admitted", absl::Now(), &job);
  AddEvent(v1::EVENT_KIND_SUBMITTED, "admitted", absl::Now(), &other);
  std::vector<std::string> seen;
  int64_t newest = 0;
  {
    auto store = Open();
    ASSERT_TRUE(store->Insert(job).ok());
    ASSERT_TRUE(store->Insert(other).ok());
    AddEvent(v1::EVENT_KIND_NOTE, "waits", absl::Now(), &job);
    ASSERT_TRUE(store->Update(job).ok());
    ASSERT_TRUE(store->Update(job).ok());
    AddEvent(v1::EVENT_KIND_NOTE, "waits", absl::Now(), &other);
    ASSERT_TRUE(FirstError(store->UpdateAll({&job, &other})).ok());
    ASSERT_TRUE(store->SetCordon("n", {}, {OfNode("n")}).ok());
    v1::ListNodesResponse nodes;
    nodes.add_nodes()->set_name("m");
    ASSERT_TRUE(store->UpdateNodes(nodes, {}, {OfNode("m")}).ok());
    ASSERT_TRUE(store->RemoveCordon("n", {OfNode("n")}).ok());
    EXPECT_TRUE(absl::IsNotFound(store->Delete("never", {OfNode("deleted")})));
    ASSERT_TRUE(store->Delete("b", {OfNode("deleted")}).ok());
    seen = EventsIn(*store);
    newest = store->events().newest();
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"a/1", "b/1", "a/2", "b/2", "n", "m", "n", "deleted"}));
  auto store = Open();
  EXPECT_EQ(EventsIn(*store), seen);
  EXPECT_EQ(store->events().newest(), newest);
  EXPECT_EQ(store->Get("a")->SerializeAsString(), job.SerializeAsString());
  EXPECT_EQ(store->LiveJobs()->at(0).events_size(), 2);
  EXPECT_EQ(store->List({})->jobs[0].events_size(), 2);
  AddEvent(v1::EVENT_KIND_NOTE, "continues", absl::Now(), &job);
  ASSERT_TRUE(store->Update(job).ok());
  EXPECT_EQ(EventsIn(*store).back(), "a/3");
}

TEST_P(StateStoreTest, FailedWriteAddsNoEvents) {
  auto store = Open();
  v1::Job job = SavingJob("a", 1, v1::JOB_STATE_QUEUED, "/d");
  AddEvent(v1::EVENT_KIND_SUBMITTED, "admitted", absl::Now(), &job);
  ASSERT_TRUE(store->Insert(job).ok());
  v1::Job taken = SavingJob("b", 2, v1::JOB_STATE_QUEUED, "/d");
  AddEvent(v1::EVENT_KIND_SUBMITTED, "admitted", absl::Now(), &taken);
  EXPECT_FALSE(store->Insert(taken).ok());
  v1::Job never = MakeJob("c", 3);
  AddEvent(v1::EVENT_KIND_NOTE, "waits", absl::Now(), &never);
  EXPECT_FALSE(store->Update(never).ok());
  EXPECT_EQ(EventsIn(*store), std::vector<std::string>{"a/1"});
}

TEST_P(StateStoreTest, StoresGapOfNoisyJob) {
  v1::Job noisy = MakeJob("noisy", 1), quiet = MakeJob("quiet", 2);
  AddEvent(v1::EVENT_KIND_SUBMITTED, "admitted", absl::Now(), &noisy);
  AddEvent(v1::EVENT_KIND_SUBMITTED, "admitted", absl::Now(), &quiet);
  const auto all = [](const StateStore& store) {
    EventQuery query;
    query.limit = INT32_MAX;
    std::vector<std::string> seen;
    const absl::StatusOr<EventPage> page = store.events().Read(query);
    for (const v1::Event& event : page->events) seen.push_back(event.ShortDebugString());
    return seen;
  };
  std::vector<std::string> seen;
  {
    auto store = Open(/*max_events=*/50);
    ASSERT_TRUE(store->Insert(quiet).ok());
    ASSERT_TRUE(store->Insert(noisy).ok());
    for (int i = 0; i < 40; ++i) {
      for (int each = 0; each < 10; ++each) AddEvent(v1::EVENT_KIND_NOTE, "again", absl::Now(), &noisy);
      ASSERT_TRUE(store->Update(noisy).ok());
    }
    seen = all(*store);
    EXPECT_EQ(seen.size(), 50u);
    const auto retained = EventsIn(*store);
    EXPECT_EQ(std::count(retained.begin(), retained.end(), "quiet/1"), 1);
    EXPECT_EQ(std::count(retained.begin(), retained.end(), "noisy/1"), 1);
    EXPECT_EQ(retained.back(), "noisy/401");
  }
  auto store = Open(/*max_events=*/50);
  EXPECT_EQ(all(*store), seen);
  EXPECT_EQ(store->Get("noisy")->events(0).number(), 1);
  const auto gap = std::count_if(seen.begin(), seen.end(), [](const std::string& event) {
    return event.find("EVENT_KIND_EVENTS_DELETED") != std::string::npos &&
           event.find("deleted_events: 353") != std::string::npos;
  });
  EXPECT_EQ(gap, 1) << "49 of 402 events are retained, and a gap for the others";
}

TEST_P(StateStoreTest, DropsOldestIfAllOwnersHaveFewEvents) {
  auto store = Open(/*max_events=*/20);
  for (int i = 0; i < 30; ++i)
    ASSERT_TRUE(store->SetCordon(absl::StrCat("n", i), {}, {OfNode(absl::StrCat("n", i))}).ok());
  EXPECT_EQ(EventsIn(*store).size(), 20u);
  EXPECT_EQ(EventsIn(*store).front(), "n10");
  store.reset();
  EXPECT_EQ(EventsIn(*Open(/*max_events=*/20)).front(), "n10");
}

TEST_P(StateStoreTest, StoresManyEventsOnce) {
  auto store = Open();
  std::vector<v1::Job> jobs;
  for (int i = 0; i < 40; ++i) jobs.push_back(MakeJob(absl::StrCat("j", i), i));
  std::vector<const v1::Job*> all;
  for (v1::Job& job : jobs) {
    ASSERT_TRUE(store->Insert(job).ok());
    for (int i = 0; i < 7; ++i) AddEvent(v1::EVENT_KIND_NOTE, "a word", absl::Now(), &job);
    all.push_back(&job);
  }
  ASSERT_TRUE(FirstError(store->UpdateAll(all)).ok());
  ASSERT_TRUE(FirstError(store->UpdateAll(all)).ok());
  EXPECT_EQ(EventsIn(*store).size(), 280u);
  EXPECT_EQ(store->Get("j39")->events_size(), 7);
}

TEST_P(StateStoreTest, UpdatesAndDeletesNodes) {
  v1::ListNodesResponse nodes;
  {
    auto store = Open();
    EXPECT_EQ(store->Nodes()->nodes_size(), 0);
    for (const char* name : {"a", "b", "c"}) nodes.add_nodes()->set_name(name);
    ASSERT_TRUE(store->UpdateNodes(nodes, {}).ok());
    v1::ListNodesResponse changed;
    *changed.add_nodes() = nodes.nodes(2);
    changed.mutable_nodes(0)->set_slots(8);
    ASSERT_TRUE(store->UpdateNodes(changed, {"b", "never"}).ok());
    ASSERT_TRUE(store->UpdateNodes({}, {}).ok());
  }
  const auto stored = Open()->Nodes();
  ASSERT_TRUE(stored.ok()) << stored.status();
  ASSERT_EQ(stored->nodes_size(), 2);
  EXPECT_EQ(stored->nodes(0).name(), "a");
  EXPECT_EQ(stored->nodes(1).name(), "c");
  EXPECT_EQ(stored->nodes(1).slots(), 8);
}

TEST_P(StateStoreTest, StoresNodesInSeveralTransactions) {
  v1::ListNodesResponse nodes;
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) {
    names.push_back(absl::StrCat("node-", 1000 + i));
    nodes.add_nodes()->set_name(names.back());
    nodes.mutable_nodes(i)->mutable_preflight()->add_violations(std::string(4000, 'x'));
  }
  auto store = Open();
  ASSERT_TRUE(store->UpdateNodes(nodes, {}).ok());
  EXPECT_EQ(store->Nodes()->SerializeAsString(), nodes.SerializeAsString());
  names.pop_back();
  ASSERT_TRUE(store->UpdateNodes({}, names).ok());
  EXPECT_EQ(store->Nodes()->nodes_size(), 1);
}

TEST_P(StateStoreTest, ReplacesAndRemovesCordons) {
  v1::Cordon cordon;
  {
    auto store = Open();
    for (const char* reason : {"first", "second"}) {
      cordon.set_reason(reason);
      ASSERT_TRUE(store->SetCordon("b", cordon).ok());
    }
    ASSERT_TRUE(store->SetCordon("a", cordon).ok());
    ASSERT_TRUE(store->RemoveCordon("a").ok());
    EXPECT_TRUE(store->RemoveCordon("never").ok());
  }
  const auto cordons = Open()->Cordons();
  ASSERT_TRUE(cordons.ok());
  ASSERT_EQ(cordons->size(), 1u);
  EXPECT_EQ(cordons->at("b").reason(), "second");
}

// Regression: the update of a missing job returned OK, and its events were stored.
TEST_P(StateStoreTest, UpdateAllReportsMissingJob) {
  auto store = Open();
  std::vector<v1::Job> jobs;
  for (int i = 0; i < 3; ++i) {
    jobs.push_back(MakeJob("j" + std::to_string(i), i));
    if (i < 2) {
      ASSERT_TRUE(store->Insert(jobs.back()).ok());
    }
    jobs.back().set_state(v1::JOB_STATE_RUNNING);
    jobs.back().set_reason("newer");
    AddEvent(v1::EVENT_KIND_NOTE, "newer", absl::Now(), &jobs.back());
  }
  const std::vector<absl::Status> stored = store->UpdateAll({&jobs[0], &jobs[2], &jobs[1]});
  ASSERT_EQ(stored.size(), 3u);
  EXPECT_TRUE(stored[0].ok()) << stored[0];
  EXPECT_EQ(stored[1], absl::NotFoundError("no job 'j2'"));
  EXPECT_TRUE(stored[2].ok()) << stored[2];
  EXPECT_EQ(EventsIn(*store), (std::vector<std::string>{"j0/1", "j1/1"}));
  EXPECT_EQ(store->Get("j0")->reason(), "newer");
  EXPECT_EQ(store->Get("j1")->state(), v1::JOB_STATE_RUNNING);
  JobQuery running;
  running.states = {v1::JOB_STATE_RUNNING};
  EXPECT_EQ(store->List(running)->jobs.size(), 2u);
  EXPECT_TRUE(FirstError(store->UpdateAll({})).ok());
}

TEST_P(StateStoreTest, PageEndsAtByteLimit) {
  auto store = Open();
  for (int i = 0; i < 5; ++i) {
    v1::Job job = MakeJob("j" + std::to_string(i), i);
    job.set_reason(std::string(1000, 'x'));
    ASSERT_TRUE(store->Insert(job).ok());
  }
  JobQuery query;
  query.max_bytes = 1500;
  const auto page = store->List(query);
  ASSERT_EQ(page->jobs.size(), 2u);
  EXPECT_TRUE(page->more);
  query.max_bytes = 1;
  EXPECT_EQ(store->List(query)->jobs.size(), 1u);  // At least one, so that the next page makes progress.
}

TEST_P(StateStoreTest, RepeatedRequestReturnsSameJob) {
  auto store = Open();
  v1::Job job = MakeJob("a", 1);
  job.set_request_id("r1");
  ASSERT_TRUE(store->Insert(job)->created);
  job.set_id("b");
  const auto again = store->Insert(job);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->created);
  EXPECT_EQ(again->job.id(), "a");
  EXPECT_EQ(store->FindRequest("r1", job.spec())->value().id(), "a");
  EXPECT_FALSE(store->FindRequest("r2", job.spec())->has_value());
  job.mutable_spec()->set_name("other");
  EXPECT_EQ(store->FindRequest("r1", job.spec()).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store->Insert(job).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store->List(JobQuery())->jobs.size(), 1u);
}

TEST_P(StateStoreTest, ConcurrentInsertsOfRequestCreateOneJob) {
  auto store = Open();
  std::vector<std::string> ids(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ids.size(); ++i) {
    threads.emplace_back([&, i] {
      v1::Job job = MakeJob("job-" + std::to_string(i), 1);
      job.set_request_id("same");
      const auto inserted = store->Insert(job);
      if (inserted.ok()) ids[i] = inserted->job.id();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& id : ids) EXPECT_EQ(id, ids[0]);
  EXPECT_FALSE(ids[0].empty());
}

TEST_P(StateStoreTest, RejectsDuplicateIdAndMissingJob) {
  auto store = Open();
  ASSERT_TRUE(store->Insert(MakeJob("a", 1)).ok());
  EXPECT_EQ(store->Insert(MakeJob("a", 2)).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store->Update(MakeJob("b", 1)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->Get("b").status().code(), absl::StatusCode::kNotFound);
}

TEST_P(StateStoreTest, PagesHaveEachJobOnce) {
  auto store = Open();
  for (int i = 0; i < 1000; ++i) {
    // Ten jobs per creation time: the id decides.
    ASSERT_TRUE(store->Insert(MakeJob("job-" + std::to_string(10000 + i), i / 10)).ok());
  }
  std::vector<std::string> seen;
  JobQuery query;
  query.limit = 37;
  for (bool more = true; more;) {
    const auto page = store->List(query);
    ASSERT_TRUE(page.ok());
    for (const v1::Job& job : page->jobs) seen.push_back(job.id());
    more = page->more;
    query.after_cursor = true;
    query.cursor = page->end;
  }
  ASSERT_EQ(seen.size(), 1000u);
  EXPECT_EQ(seen.front(), "job-10999");
  EXPECT_TRUE(std::is_sorted(seen.rbegin(), seen.rend()));
}

TEST_P(StateStoreTest, FiltersByStateAndLoadsLiveJobsOldestFirst) {
  auto store = Open();
  ASSERT_TRUE(store->Insert(MakeJob("done", 1, v1::JOB_STATE_SUCCEEDED)).ok());
  ASSERT_TRUE(store->Insert(MakeJob("second", 3, v1::JOB_STATE_QUEUED)).ok());
  ASSERT_TRUE(store->Insert(MakeJob("first", 2, v1::JOB_STATE_STOPPING)).ok());
  JobQuery query;
  query.states = {v1::JOB_STATE_SUCCEEDED};
  ASSERT_EQ(store->List(query)->jobs.size(), 1u);
  const auto live = store->LiveJobs();
  ASSERT_EQ(live->size(), 2u);
  EXPECT_EQ(live->at(0).id(), "first");
}

TEST_P(StateStoreTest, ForgetsJobsByEnd) {
  auto store = Open();
  // The oldest job ended last, like one that trains for a month.
  ASSERT_TRUE(store->Insert(Ended("month", 1, 90)).ok());
  ASSERT_TRUE(store->Insert(Ended("short", 2, 10)).ok());
  ASSERT_TRUE(store->Insert(Ended("shorter", 3, 20)).ok());
  ASSERT_TRUE(store->Insert(MakeJob("runs", 0, v1::JOB_STATE_RUNNING)).ok());
  const absl::Time now = absl::FromUnixNanos(100);
  EXPECT_THAT(*store->ForgetEnded({3, absl::InfiniteDuration()}, now, 10), ::testing::IsEmpty());
  EXPECT_THAT(*store->ForgetEnded({1, absl::InfiniteDuration()}, now, 1), ::testing::ElementsAre("short"));
  EXPECT_THAT(*store->ForgetEnded({1, absl::InfiniteDuration()}, now, 10), ::testing::ElementsAre("shorter"));
  EXPECT_THAT(*store->ForgetEnded({9, absl::Nanoseconds(9)}, now, 10), ::testing::ElementsAre("month"));
  EXPECT_TRUE(store->Get("runs").ok());
  EXPECT_EQ(store->List(JobQuery())->jobs.size(), 1u);
}

TEST_P(StateStoreTest, DoesNotForgetRetriedJobs) {
  auto store = Open();
  ASSERT_TRUE(store->Insert(Ended("a", 1, 10)).ok());
  ASSERT_TRUE(store->Insert(Ended("b", 2, 10)).ok());
  ASSERT_TRUE(store->Update(MakeJob("a", 1)).ok());
  const v1::Job b = MakeJob("b", 2, v1::JOB_STATE_RUNNING);
  ASSERT_TRUE(FirstError(store->UpdateAll({&b})).ok());
  EXPECT_THAT(*store->ForgetEnded({0, absl::Nanoseconds(1)}, absl::FromUnixNanos(100), 10),
              ::testing::IsEmpty());
}

// Ids of all pages of a query, with a bar after each page.
std::string PagesOf(StateStore* store, JobQuery query) {
  std::string pages;
  for (int i = 0; i < 100; ++i) {
    const absl::StatusOr<JobPage> page = store->List(query);
    EXPECT_TRUE(page.ok()) << page.status();
    if (!page.ok()) break;
    for (const v1::Job& job : page->jobs) pages += job.id();
    pages += "|";
    if (!page->more) break;
    query.after_cursor = true;
    query.cursor = page->end;
  }
  return pages;
}

TEST_P(StateStoreTest, PagesFollowRequestedOrder) {
  auto store = Open();
  ASSERT_TRUE(store->Insert(Ended("a", 1, 30)).ok());
  ASSERT_TRUE(store->Insert(MakeJob("b", 2)).ok());
  ASSERT_TRUE(store->Insert(Ended("c", 3, 10)).ok());
  ASSERT_TRUE(store->Insert(Ended("d", 4, 10)).ok());
  JobQuery query;
  query.limit = 3;
  EXPECT_EQ(PagesOf(store.get(), query), "dcb|a|");
  query.ascending = true;
  EXPECT_EQ(PagesOf(store.get(), query), "abc|d|");
  query.by_end = true;
  EXPECT_EQ(PagesOf(store.get(), query), "bcd|a|");
  query.ascending = false;
  EXPECT_EQ(PagesOf(store.get(), query), "adc|b|");
}

TEST_P(StateStoreTest, ListsJobsByIdPrefix) {
  auto store = Open();
  for (const char* id : {"ab-1", "abc-1", "ab-2", "b-ab-3", "AB-4"})
    ASSERT_TRUE(store->Insert(MakeJob(id, 0)).ok());
  JobQuery query;
  query.limit = 2;
  query.id_prefix = "ab";
  EXPECT_EQ(PagesOf(store.get(), query), "abc-1ab-2|ab-1|");
  query.id_prefix = "ab-%";
  EXPECT_EQ(PagesOf(store.get(), query), "|");
}

TEST_P(StateStoreTest, SelectorOfRareLabelFillsPages) {
  auto store = Open();
  for (int i = 0; i < 26; ++i) {
    v1::Job job = MakeJob(std::string(1, static_cast<char>('a' + i)), i);
    if (i % 5 == 0) job.add_labels()->set_key("rare");
    ASSERT_TRUE(store->Insert(job).ok());
  }
  JobQuery query;
  query.limit = 3;
  query.selector = *ParseSelector("rare");
  EXPECT_EQ(PagesOf(store.get(), query), "zup|kfa|");
}

TEST_P(StateStoreTest, SelectorMatchesLabelsInEveryOrder) {
  auto store = Open();
  const std::vector<std::vector<std::pair<const char*, const char*>>> labels = {
      {{"team", "a"}}, {{"team", "a"}, {"stage", "test"}}, {{"team", "b"}}, {}, {{"team", "a"}, {"old", ""}}};
  for (size_t i = 0; i < labels.size(); ++i) {
    v1::Job job = MakeJob(std::string(1, static_cast<char>('a' + i)), static_cast<int64_t>(i));
    for (const auto& [key, value] : labels[i]) {
      v1::Label* const label = job.add_labels();
      label->set_key(key);
      label->set_value(value);
    }
    ASSERT_TRUE(store->Insert(job).ok());
  }
  JobQuery query;
  query.limit = 2;
  const auto found = [&](const char* selector) {
    query.selector = *ParseSelector(selector);
    return PagesOf(store.get(), query);
  };
  EXPECT_EQ(found("team=a"), "eb|a|");
  EXPECT_EQ(found("team=a,stage!=test"), "ea|");
  EXPECT_EQ(found("team!=a"), "dc|");
  EXPECT_EQ(found("team"), "ec|ba|");
  EXPECT_EQ(found("!team"), "d|");
  EXPECT_EQ(found("!old,team=a"), "ba|");
  EXPECT_EQ(found("team=none"), "|");
  query.ascending = true;
  EXPECT_EQ(found("team=a"), "ab|e|");
  query.by_end = true;
  EXPECT_EQ(found("team=a"), "ab|e|");
  query.by_end = false;
  query.states = {v1::JOB_STATE_PAUSED};
  EXPECT_EQ(found("team=a"), "|");
  query.states.clear();
  ASSERT_TRUE(store->Delete("a").ok());
  EXPECT_EQ(found("team=a"), "be|");
}

TEST_P(StateStoreTest, LiveJobRetainsEvents) {
  v1::Job lives = MakeJob("lives", 1);
  {
    auto store = Open(/*max_events=*/200);
    AddEvent(v1::EVENT_KIND_SUBMITTED, "admitted", absl::Now(), &lives);
    ASSERT_TRUE(store->Insert(lives).ok());
    for (int i = 0; i < 300; ++i) {
      lives.set_state(i % 2 == 0 ? v1::JOB_STATE_PAUSED : v1::JOB_STATE_QUEUED);
      AddEvent(v1::EVENT_KIND_NOTE, "again", absl::Now(), &lives);
      ASSERT_TRUE(store->Update(lives).ok());
    }
    for (int i = 0; i < 60; ++i) {
      v1::Job other = Ended(absl::StrCat("other", i), 2, 3);
      for (int each = 0; each < 5; ++each) AddEvent(v1::EVENT_KIND_NOTE, "a word", absl::Now(), &other);
      ASSERT_TRUE(store->Insert(other).ok());
    }
    EXPECT_EQ(store->Get("lives")->SerializeAsString(), lives.SerializeAsString());
    EXPECT_EQ(store->Get("other0")->events_size(), 0);
  }
  EXPECT_EQ(Open(/*max_events=*/200)->Get("lives")->SerializeAsString(), lives.SerializeAsString());
}

TEST_P(StateStoreTest, DeletedJobReleasesRequestId) {
  auto store = Open();
  v1::Job job = MakeJob("a", 1);
  job.set_request_id("r");
  ASSERT_TRUE(store->Insert(job).ok());
  ASSERT_TRUE(store->Delete("a").ok());
  EXPECT_EQ(store->Delete("a").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->Get("a").status().code(), absl::StatusCode::kNotFound);
  job.set_id("b");
  EXPECT_TRUE(store->Insert(job)->created);
}

TEST_P(StateStoreTest, RejectsSecondLiveJobInDirectory) {
  const auto store = Open();
  ASSERT_TRUE(store->Insert(SavingJob("a", 1, v1::JOB_STATE_PAUSED, "/runs/7")).ok());
  EXPECT_TRUE(store->Insert(SavingJob("elsewhere", 2, v1::JOB_STATE_QUEUED, "/runs/8")).ok());
  EXPECT_TRUE(store->Insert(MakeJob("nowhere", 3)).ok());
  EXPECT_TRUE(store->Insert(MakeJob("nowhere too", 4)).ok());
  const v1::Job second = SavingJob("b", 5, v1::JOB_STATE_QUEUED, "/runs//7/");
  EXPECT_EQ(store->Insert(second).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::IsNotFound(store->Get("b").status()));
  ASSERT_TRUE(store->Update(SavingJob("a", 1, v1::JOB_STATE_FAILED, "/runs/7")).ok());
  ASSERT_TRUE(store->Insert(second).ok());
  EXPECT_EQ(store->Update(SavingJob("a", 1, v1::JOB_STATE_QUEUED, "/runs/7")).code(),
            absl::StatusCode::kFailedPrecondition)
      << "the directory is in use";
  EXPECT_EQ(store->Get("a")->state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(store->Update(SavingJob("b", 5, v1::JOB_STATE_RUNNING, "/runs/7")).ok());
  JobQuery query;
  query.directory = "/runs/7";
  const auto sharing = store->List(query);
  ASSERT_TRUE(sharing.ok()) << sharing.status();
  ASSERT_EQ(sharing->jobs.size(), 2U);
  EXPECT_EQ(sharing->jobs[0].id(), "b");
}

TEST_P(StateStoreTest, RepeatedRequestDoesNotConflictWithItself) {
  const auto store = Open();
  v1::Job job = SavingJob("a", 1, v1::JOB_STATE_QUEUED, "/runs/7");
  job.set_request_id("r");
  ASSERT_TRUE(store->Insert(job).ok());
  job.set_id("b");
  const auto again = store->Insert(job);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->created);
  EXPECT_EQ(again->job.id(), "a");
}

TEST_P(StateStoreTest, ConcurrentInsertsIntoDirectoryCreateOneJob) {
  const auto store = Open();
  std::atomic<int> created{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto job = SavingJob("j" + std::to_string(i), i + 1, v1::JOB_STATE_QUEUED, "/runs/7");
      created += store->Insert(job).ok() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(created, 1);
}

TEST_P(StateStoreTest, ReadsBackStoredJob) {
  v1::Job job = SavingJob("a", 1, v1::JOB_STATE_RUNNING, "/runs/7");
  job.set_project("vision");
  job.set_request_id("r");
  for (int i = 0; i < 400; ++i) job.add_warnings(std::string(1000, 'x'));
  for (int i = 0; i < 70; ++i)
    AddEvent(v1::EVENT_KIND_NOTE, std::string(1000, 'x'), absl::FromUnixSeconds(i), &job);
  Open()->Insert(job).IgnoreError();
  const auto store = Open();
  EXPECT_EQ(store->Get("a")->SerializeAsString(), job.SerializeAsString());
  EXPECT_EQ(store->LiveJobs()->at(0).SerializeAsString(), job.SerializeAsString());
  JobQuery query;
  query.project = "vision";
  EXPECT_EQ(store->List(query)->jobs.size(), 1u);
  query.project = "other";
  EXPECT_TRUE(store->List(query)->jobs.empty());
  EXPECT_EQ(store->FindRequest("r", job.spec())->value().id(), "a");
}

TEST_P(StateStoreTest, UpdatesJobsInSeveralTransactions) {
  auto store = Open();
  std::vector<v1::Job> jobs;
  for (int i = 0; i < 150; ++i) {
    jobs.push_back(MakeJob("j" + std::to_string(i), i));
    ASSERT_TRUE(store->Insert(jobs.back()).ok());
    jobs.back().set_reason(std::string(20'000, 'x'));
    jobs.back().set_state(v1::JOB_STATE_FAILED);
    jobs.back().set_end_unix_nanos(i + 1);
  }
  std::vector<const v1::Job*> all;
  for (const v1::Job& job : jobs) all.push_back(&job);
  ASSERT_TRUE(FirstError(store->UpdateAll(all)).ok());
  EXPECT_TRUE(store->LiveJobs()->empty());
  EXPECT_EQ(store->ForgetEnded({0, absl::InfiniteDuration()}, absl::FromUnixNanos(1), 1000)->size(), 150u);
  store.reset();
  EXPECT_TRUE(Open()->List(JobQuery())->jobs.empty());
}

}  // namespace
}  // namespace fsdpd
