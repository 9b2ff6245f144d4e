// Fencing of writers and lost answers. state_store_test.cc tests the contract of all stores.
#include "coordinator/store/etcd_store.h"

#include <absl/time/clock.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "coordinator/job/job_machine.h"
#include "coordinator/store/etcd_events.h"
#include "coordinator/store/measured_store.h"
#include "coordinator/testing/etcd_server.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr char kPrefix[] = "/fsdpd/";

v1::Job MakeJob(const std::string& id, const std::string& reason = "") {
  v1::Job job;
  job.set_id(id);
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_reason(reason);
  return job;
}

// Exceeds etcd's limit by its spec, which SmallRecord() does not shorten.
v1::Job HugeJob(const std::string& id, int bytes = 2'000'000) {
  v1::Job job = MakeJob(id);
  job.mutable_spec()->set_name(std::string(bytes, 'x'));
  return job;
}

class EtcdStoreTest : public ::testing::Test {
 protected:
  explicit EtcdStoreTest(int64_t quota_bytes = 0) : server_(quota_bytes), client_(NewClient()) {}

  std::unique_ptr<EtcdClient> NewClient() {
    EtcdOptions options;
    options.members = {server_.address()};
    options.attempt = absl::Milliseconds(600);
    return *EtcdClient::Make(options, absl::Now());
  }
  absl::StatusOr<std::unique_ptr<Leadership>> TryTake(
      EtcdClient* client, std::function<void()> lost = [] {}) {
    Leadership::Options options;
    options.prefix = kPrefix;
    options.address = "127.0.0.1:1";
    options.lease = absl::Seconds(60);
    return Leadership::TryTake(client, options, std::move(lost));
  }
  std::unique_ptr<Leadership> Take(std::function<void()> lost = [] {}) {
    auto taken = TryTake(client_.get(), std::move(lost));
    EXPECT_TRUE(taken.ok() && *taken != nullptr) << taken.status();
    return *std::move(taken);
  }
  std::unique_ptr<EtcdStore> OpenOrDie(Leadership* leadership) {
    auto store = EtcdStore::Open(client_.get(), kPrefix, leadership);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  void Raw(const std::string& name, const std::string& value) {
    etcdserverpb::TxnRequest request;
    auto* op = request.add_success();
    if (value.empty()) {
      op->mutable_request_delete_range()->set_key(kPrefix + name);
    } else {
      op->mutable_request_put()->set_key(kPrefix + name);
      op->mutable_request_put()->set_value(value);
    }
    ASSERT_TRUE(client_->TryTxn(request).ok());
  }

  EtcdServer server_;
  std::unique_ptr<EtcdClient> client_;
};

TEST_F(EtcdStoreTest, StandbyAddsEventsUpToStoredVersion) {
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  EtcdJobs jobs(client_.get(), kPrefix);
  EtcdEvents events(&jobs);
  v1::Job job = MakeJob("a");
  for (const char* message : {"one", "two"}) {
    AddEvent(v1::EVENT_KIND_NOTE, message, absl::Now(), &job);
    ASSERT_TRUE((message == std::string("one") ? store->Insert(job).status() : store->Update(job)).ok());
    auto read = jobs.Get("a");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->events_size(), 0);
    ASSERT_TRUE(events.AddTo({&*read}).ok());
    EXPECT_EQ(read->SerializeAsString(), job.SerializeAsString());
  }
  auto before = jobs.Get("a");
  AddEvent(v1::EVENT_KIND_NOTE, "three", absl::Now(), &job);
  ASSERT_TRUE(store->Update(job).ok());
  ASSERT_TRUE(events.AddTo({&*before}).ok());
  EXPECT_EQ(before->events_size(), 2) << "events after the stored version are not added";
}

TEST_F(EtcdStoreTest, RejectsWritesOfFormerLeader) {
  std::atomic<bool> lost{false};
  const auto first = Take([&] { lost = true; });
  const auto old_store = OpenOrDie(first.get());
  ASSERT_TRUE(old_store->Insert(MakeJob("a", "of the first")).ok());
  Raw("leader", "");  // As if its lease had expired unnoticed.
  const auto second = Take();
  ASSERT_GT(second->generation(), first->generation());
  const auto new_store = OpenOrDie(second.get());
  ASSERT_TRUE(first->held());
  EXPECT_TRUE(absl::IsUnavailable(old_store->Update(MakeJob("a", "stale"))));
  EXPECT_TRUE(lost);
  EXPECT_FALSE(first->held());
  EXPECT_TRUE(absl::IsUnavailable(old_store->Insert(MakeJob("b")).status()));
  const v1::Job a = MakeJob("a", "late");
  EXPECT_TRUE(absl::IsUnavailable(FirstError(old_store->UpdateAll({&a}))));
  EXPECT_TRUE(absl::IsUnavailable(old_store->Delete("a")));
  EXPECT_TRUE(absl::IsUnavailable(old_store->SetCordon("n", {})));
  EXPECT_TRUE(absl::IsUnavailable(old_store->UpdateNodes({}, {"a"})));
  EXPECT_EQ(new_store->Get("a")->reason(), "of the first");
  EXPECT_TRUE(new_store->Update(MakeJob("a", "of the second")).ok());
}

// Regression: each failover raised the alert for a store that fails.
TEST_F(EtcdStoreTest, FencedWritesAreNotCountedAsErrors) {
  Meters meters;
  const auto first = Take();
  const auto old_store = Measured(OpenOrDie(first.get()), &meters);
  ASSERT_TRUE(old_store->Insert(MakeJob("a")).ok());
  Raw("leader", "");  // As if its lease had expired; its own clock does not know it.
  const auto second = Take();
  const auto new_store = OpenOrDie(second.get());
  const v1::Job a = MakeJob("a", "late");
  EXPECT_TRUE(absl::IsUnavailable(old_store->Update(a)));
  EXPECT_TRUE(absl::IsUnavailable(FirstError(old_store->UpdateAll({&a}))));
  EXPECT_TRUE(absl::IsUnavailable(old_store->Insert(MakeJob("b")).status()));
  std::map<std::string, double> errors;
  for (const prometheus::MetricFamily& family : meters.Collect()) {
    if (family.name != "fsdpd_store_errors_total") continue;
    for (const auto& metric : family.metric) errors[metric.label.front().value] = metric.counter.value;
  }
  EXPECT_THAT(errors, UnorderedElementsAre(Pair("Insert", 0), Pair("Update", 0), Pair("UpdateAll", 0)));
}

TEST_F(EtcdStoreTest, WritesOnceAfterLostAnswer) {
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  server_.Pause();
  std::atomic<bool> done{false};
  std::thread continues([&] {
    // Longer than one attempt: the store has given up on it, but etcd applies it later.
    absl::SleepFor(absl::Milliseconds(900));
    EXPECT_FALSE(done);
    server_.Continue();
  });
  const auto inserted = store->Insert(MakeJob("a"));
  done = true;
  continues.join();
  ASSERT_TRUE(inserted.ok()) << inserted.status();
  EXPECT_TRUE(inserted->created);
  EXPECT_TRUE(store->Insert(MakeJob("b")).ok()) << "the store knows its last write";
  EXPECT_EQ(store->List(JobQuery())->jobs.size(), 2u);
}

TEST_F(EtcdStoreTest, SurvivesEtcdRestart) {
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  ASSERT_TRUE(store->Insert(MakeJob("a")).ok());
  server_.Kill();
  std::thread inserts([&] { EXPECT_TRUE(store->Insert(MakeJob("b")).ok()); });
  server_.Start();  // In this thread: etcd is killed when the thread that started it ends.
  inserts.join();
  EXPECT_EQ(store->List(JobQuery())->jobs.size(), 2u);
}

TEST_F(EtcdStoreTest, RejectsNewerSchema) {
  Raw("schema", "99");
  const auto leadership = Take();
  const absl::Status refused = EtcdStore::Open(client_.get(), kPrefix, leadership.get()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("schema 99"));
}

// Schema 1 stored a job's events within the job, without numbers, and had no event log.
TEST_F(EtcdStoreTest, MigratesEventsOfFirstSchema) {
  for (const v1::JobState state : {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_QUEUED}) {
    v1::Job job = MakeJob(state == v1::JOB_STATE_QUEUED ? "live" : "ended");
    for (const char* message : {"one", "two"}) {
      v1::Job::Event* event = job.add_events();
      event->set_unix_nanos(absl::ToUnixNanos(absl::Now()));
      event->set_message(message);
    }
    job.set_state(state);
    Raw("job/" + job.id(), job.SerializeAsString());
    Raw("entry/" + job.id(), EntryOf(job).bytes);
  }
  Raw("schema", "1");
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  EtcdJobs jobs(client_.get(), kPrefix);
  EXPECT_EQ(*jobs.ReadSchema(), 2) << "programs of schema 1 refuse it";
  EXPECT_EQ(store->LiveJobs()->size(), 1u);
  for (const char* id : {"ended", "live"}) {
    const auto job = store->Get(id);
    ASSERT_EQ(job->events_size(), 2);
    EXPECT_EQ(job->events(1).message(), "two");
    EXPECT_EQ(job->events(1).number(), 2);
  }
  v1::Job live = *store->Get("live");
  AddEvent(v1::EVENT_KIND_NOTE, "three", absl::Now(), &live);
  ASSERT_TRUE(store->Update(live).ok());
  const EventPage page = *store->events().Read({});
  ASSERT_EQ(page.events.size(), 3u);
  EXPECT_EQ(page.events[0].message(), "one");
  EXPECT_EQ(page.events[2].number(), 3);
  EXPECT_EQ(jobs.Get("live")->events_size(), 0) << "events are stored once";
  EXPECT_EQ(store->Get("live")->events_size(), 3);
  EXPECT_EQ(jobs.Get("ended")->events_size(), 2) << "ended jobs are not rewritten";
}

TEST_F(EtcdStoreTest, RejectsJobOverRequestLimit) {
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  const absl::Status refused = store->Insert(MakeJob("a", std::string(1'300'000, 'x'))).status();
  EXPECT_TRUE(absl::IsOutOfRange(refused));
  ASSERT_TRUE(store->Insert(MakeJob("a")).ok());
  const absl::Status grown = store->Update(HugeJob("a"));
  EXPECT_TRUE(absl::IsOutOfRange(grown)) << grown;
  EXPECT_THAT(std::string(grown.message()), HasSubstr("--max-request-bytes"));
  EXPECT_TRUE(store->Update(MakeJob("a", "small")).ok()) << "later writes succeed";
}

class FullEtcdTest : public EtcdStoreTest {
 protected:
  FullEtcdTest() : EtcdStoreTest(/*quota_bytes=*/2'000'000) {}
};

TEST_F(FullEtcdTest, ReportsQuotaToWriterAndCandidate) {
  auto leadership = Take();
  absl::Status written;
  {
    const auto store = OpenOrDie(leadership.get());
    // etcd checks its size periodically.
    for (int i = 0; i < 200 && written.ok(); ++i)
      written = store->Insert(MakeJob("job-" + std::to_string(i), std::string(600'000, 'x'))).status();
  }
  leadership.reset();
  const absl::Status leads = TryTake(client_.get()).status();
  for (const absl::Status& status : {written, leads}) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("etcd: storage quota exceeded"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("disarm the alarm (docs/deploy.md"));
  }
}

// Regression: the job was resent every second and with each change in every tick.
TEST_F(EtcdStoreTest, ResendsRefusedJobOnceSmaller) {
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  for (const char* id : {"a", "b"}) ASSERT_TRUE(store->Insert(MakeJob(id)).ok());
  const absl::Status refused = store->Update(HugeJob("a"));
  ASSERT_TRUE(absl::IsOutOfRange(refused)) << refused;
  // gRPC would refuse it with a different message if it were sent.
  const v1::Job grown = HugeJob("a", 3'000'000), b = MakeJob("b", "newer");
  EXPECT_EQ(store->Update(grown), refused);
  const std::vector<absl::Status> stored = store->UpdateAll({&grown, &b});
  EXPECT_EQ(stored[0], refused);
  EXPECT_EQ(stored[1], absl::OkStatus());
  EXPECT_EQ(store->Get("b")->reason(), "newer");
  EXPECT_TRUE(store->Update(MakeJob("a", "small")).ok());
  const absl::Status again = store->Update(grown);
  EXPECT_TRUE(absl::IsOutOfRange(again)) << again;
  EXPECT_NE(again, refused) << "it was resent";
}

TEST_F(EtcdStoreTest, StoresOtherJobsNextToOversizedJob) {
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(store->Insert(MakeJob(id)).ok());
  const v1::Job a = MakeJob("a", "newer"), b = HugeJob("b"), c = MakeJob("c", "newer");
  const std::vector<absl::Status> stored = store->UpdateAll({&a, &b, &c});
  EXPECT_EQ(stored[0], absl::OkStatus());
  EXPECT_TRUE(absl::IsOutOfRange(stored[1])) << stored[1];
  EXPECT_EQ(stored[2], absl::OkStatus());
  EXPECT_EQ(store->Get("a")->reason(), "newer");
  EXPECT_EQ(store->Get("b")->reason(), "");
  EXPECT_EQ(store->Get("c")->reason(), "newer");
}

// Regression: the job stayed CANCELLING, because no later state could be stored, and a new leader did not
// know about the cancel.
TEST_F(EtcdStoreTest, OversizedFailureDoesNotPreventEnd) {
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  v1::Job job = HugeJob("a", EtcdStore::kMaxJobBytes - 100);
  ASSERT_TRUE(store->Insert(job).ok());
  for (int i = 0; i < 40; ++i) job.mutable_failure()->add_log_tail(std::string(16'000, 'l'));
  job.mutable_failure()->set_error("exit code 3");
  ASSERT_EQ(store->Update(job), absl::OkStatus());
  EXPECT_THAT(store->Get("a")->failure().log_tail(0), HasSubstr("40 log lines dropped"));
  EXPECT_EQ(store->Get("a")->failure().error(), "exit code 3");
  job.set_state(v1::JOB_STATE_CANCELLED);
  job.mutable_failure()->set_error(std::string(400'000, 'e'));
  job.set_reason(std::string(400'000, 'r'));
  AddEvent(v1::EVENT_KIND_NOTE, std::string(400'000, 'm'), absl::Now(), &job);
  const v1::Job b = MakeJob("b");
  ASSERT_TRUE(store->Insert(b).ok());
  for (const absl::Status& stored : store->UpdateAll({&b, &job})) EXPECT_EQ(stored, absl::OkStatus());
  const v1::Job ended = *OpenOrDie(leadership.get())->Get("a");
  EXPECT_EQ(ended.state(), v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(ended.failure().error(), HasSubstr("bytes dropped"));
  EXPECT_EQ(ended.events_size(), 1);
}

TEST_F(EtcdStoreTest, SplitsBatchOverRequestLimit) {
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  std::vector<v1::Job> jobs = {MakeJob("a"), MakeJob("b")};
  for (v1::Job& job : jobs) {
    ASSERT_TRUE(store->Insert(job).ok());
    AddEvent(v1::EVENT_KIND_NOTE, std::string(900'000, 'm'), absl::Now(), &job);
  }
  for (const absl::Status& stored : store->UpdateAll({&jobs[0], &jobs[1]}))
    EXPECT_EQ(stored, absl::OkStatus());
  for (const char* id : {"a", "b"}) EXPECT_EQ(store->Get(id)->events(0).message().size(), 900'000u);
}

TEST_F(EtcdStoreTest, RejectsJobWithoutHeadroomForHistory) {
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  const absl::Status refused = store->Insert(HugeJob("a", 1'100'000)).status();
  EXPECT_TRUE(absl::IsOutOfRange(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("headroom for the job's history"));
}

TEST_F(EtcdStoreTest, ElasticJobNeedsHeadroomForOriginalPlan) {
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  v1::Job job = MakeJob("a");
  job.mutable_resolved()->set_name(std::string(700'000, 'x'));
  job.mutable_spec()->mutable_restart()->mutable_elastic();
  EXPECT_TRUE(absl::IsOutOfRange(store->Insert(job).status()));
  job.mutable_spec()->clear_restart();
  EXPECT_TRUE(store->Insert(job).ok());
}

TEST_F(EtcdStoreTest, UnknownRevisionIsUnavailable) {
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  ASSERT_TRUE(store->Insert(MakeJob("a")).ok());
  EtcdJobs standby(client_.get(), kPrefix);
  int64_t revision = 0;
  ASSERT_TRUE(standby.Load(&revision).ok());
  // A future revision; a compacted one is refused with the same code.
  EXPECT_TRUE(absl::IsUnavailable(standby.Read({{JobCursor{0, "a"}}}, JobQuery(), revision + 1000).status()));
  EXPECT_EQ(standby.Read({{JobCursor{0, "a"}}}, JobQuery(), revision)->jobs.size(), 1u);
}

// Regression: the cursor was the end time of the last job as it was read, so the next page skipped jobs.
TEST_F(EtcdStoreTest, PageCursorUsesEntryPosition) {
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  v1::Job job = MakeJob("a");
  ASSERT_TRUE(store->Insert(job).ok());
  EtcdJobs jobs(client_.get(), kPrefix);
  int64_t revision = 0;
  const auto index = jobs.Load(&revision);
  ASSERT_TRUE(index.ok()) << index.status();
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_end_unix_nanos(30);
  ASSERT_TRUE(store->Update(job).ok());
  JobQuery query;
  query.by_end = query.ascending = true;
  const auto page = jobs.Read(index->IdsFor(query), query);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->jobs.at(0).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(page->end.unix_nanos, 0);
}

TEST_F(EtcdStoreTest, ForeignWriteEndsLeadership) {
  std::atomic<bool> lost{false};
  const auto leadership = Take([&] { lost = true; });
  const auto store = OpenOrDie(leadership.get());
  Raw("written", "by a script");
  EXPECT_TRUE(absl::IsUnavailable(store->Insert(MakeJob("a")).status()));
  EXPECT_TRUE(lost);
}

TEST_F(EtcdStoreTest, StandbyListIsOneRevision) {
  const auto leadership = Take();
  const auto store = OpenOrDie(leadership.get());
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(store->Insert(MakeJob("job-" + std::to_string(i))).ok());
  EtcdJobs standby(client_.get(), kPrefix);
  int64_t revision = 0;
  const auto index = standby.Load(&revision);
  ASSERT_TRUE(index.ok()) << index.status();
  ASSERT_TRUE(store->Delete("job-7").ok());
  JobQuery all;
  all.limit = 100;
  EXPECT_EQ(standby.Read(index->IdsFor(JobQuery()), all, revision)->jobs.size(), 40u);
  int64_t later = 0;
  EXPECT_EQ(standby.Load(&later)->size(), 39u);
  EXPECT_GT(later, revision);
}

}  // namespace
}  // namespace fsdpd
