#include "coordinator/sqlite_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <thread>

#include "base/temp_dir.h"
#include "coordinator/testing/full_disk.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

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

std::unique_ptr<SqliteStore> OpenOrDie(const std::string& dir) {
  auto store = SqliteStore::Open(dir);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? std::move(*store) : nullptr;
}

TEST(SqliteStore, KeepsJobsOverReopenAndGrowsItsGeneration) {
  const TempDir dir;
  int64_t generation = 0;
  {
    auto store = OpenOrDie(dir.path());
    generation = store->generation();
    ASSERT_TRUE(store->Insert(MakeJob("a", 1)).ok());
    v1::Job changed = MakeJob("a", 1, v1::JOB_STATE_RUNNING);
    changed.set_reason("all ranks reported");
    ASSERT_TRUE(store->Update(changed).ok());
  }
  auto store = OpenOrDie(dir.path());
  EXPECT_GT(store->generation(), generation);
  const auto job = store->Get("a");
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->reason(), "all ranks reported");
  EXPECT_EQ(store->LiveJobs()->size(), 1u);
}

TEST(SqliteStore, OpensOnAFullDiskToReadAndWritesOnceThereIsRoom) {
  const TempDir dir;
  const int64_t generation = [&] {
    const auto store = OpenOrDie(dir.path());
    EXPECT_TRUE(store->Insert(MakeJob("before", 1)).ok());
    return store->generation();
  }();
  int64_t second_generation = 0;
  {
    std::optional<FullDisk> full(std::in_place);
    auto store = SqliteStore::Open(dir.path());
    const auto before = store.ok() ? (*store)->Get("before") : store.status();
    const auto refused = store.ok() ? (*store)->Insert(MakeJob("refused", 2)).status() : store.status();
    full.reset();
    ASSERT_TRUE(before.ok()) << before.status();
    EXPECT_THAT(std::string(refused.message()), HasSubstr("disk"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(dir.path() + "/fsdpd.db"));
    second_generation = (*store)->generation();
    EXPECT_GT(second_generation, generation);
    EXPECT_TRUE((*store)->Insert(MakeJob("after", 3)).ok());
    EXPECT_EQ((*store)->Get("refused").status().code(), absl::StatusCode::kNotFound);
  }
  const auto store = OpenOrDie(dir.path());
  EXPECT_GT(store->generation(), second_generation);
  EXPECT_TRUE(store->Get("after").ok());
}

TEST(SqliteStore, SaysThatANewStateNeedsRoom) {
  const TempDir dir;
  std::optional<FullDisk> full(std::in_place);
  const absl::Status status = SqliteStore::Open(dir.path()).status();
  full.reset();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the disk of " + dir.path() + "/fsdpd.db is full"));
}

TEST(SqliteStore, RefusesASecondCoordinator) {
  const TempDir dir;
  const auto first = OpenOrDie(dir.path());
  const auto second = SqliteStore::Open(dir.path());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another coordinator"));
}

TEST(SqliteStore, RefusesAFileThatIsNoDatabase) {
  const TempDir dir;
  std::ofstream(dir.File("fsdpd.db")) << std::string(8192, 'x');
  const auto store = SqliteStore::Open(dir.path());
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("fsdpd.db"));
}

TEST(SqliteStore, ReportsDamagedPagesAsDataLoss) {
  const TempDir dir;
  {
    auto store = OpenOrDie(dir.path());
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(store->Insert(MakeJob("job-" + std::to_string(i), i)).ok());
  }
  {
    std::fstream file(dir.File("fsdpd.db"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(0, std::ios::end);
    const int64_t size = file.tellp();
    ASSERT_GT(size, 3 * 4096);
    file.seekp(4096);
    file << std::string(size - 4096, '\xff');
  }
  const auto store = SqliteStore::Open(dir.path());
  const absl::Status status = store.ok() ? (*store)->List(JobQuery()).status() : store.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST(SqliteStore, RefusesANewerSchemaAndLeavesItAlone) {
  const TempDir dir;
  OpenOrDie(dir.path()).reset();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(dir.File("fsdpd.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA user_version=99", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  const auto store = SqliteStore::Open(dir.path());
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("schema 99"));
}

// What is read here is a file as the first release wrote it, and not what this one makes of its own.
TEST(SqliteStore, AFileOfTheFirstSchemaKeepsItsJobsAndTakesCordons) {
  const TempDir dir;
  const v1::Job job = MakeJob("j", 7);
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(dir.File("fsdpd.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, R"sql(
    CREATE TABLE jobs (id TEXT PRIMARY KEY NOT NULL, state INTEGER NOT NULL, create_nanos INTEGER NOT NULL,
                       request_id TEXT UNIQUE, job BLOB NOT NULL);
    CREATE INDEX jobs_by_time ON jobs (create_nanos, id);
    CREATE INDEX jobs_by_state ON jobs (state, create_nanos, id);
    CREATE TABLE counters (name TEXT PRIMARY KEY NOT NULL, value INTEGER NOT NULL);
    INSERT INTO counters VALUES ('generation', 41);
    PRAGMA user_version=1;)sql",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_stmt* insert = nullptr;
  ASSERT_EQ(sqlite3_prepare_v2(db, "INSERT INTO jobs VALUES ('j', 1, 7, NULL, ?)", -1, &insert, nullptr),
            SQLITE_OK);
  const std::string bytes = job.SerializeAsString();
  sqlite3_bind_blob(insert, 1, bytes.data(), static_cast<int>(bytes.size()), SQLITE_TRANSIENT);
  ASSERT_EQ(sqlite3_step(insert), SQLITE_DONE);
  sqlite3_finalize(insert);
  sqlite3_close(db);
  v1::Cordon cordon;
  cordon.set_reason("a fan is broken");
  {
    auto store = OpenOrDie(dir.path());
    EXPECT_EQ(store->generation(), 42);
    EXPECT_EQ(store->Get("j")->SerializeAsString(), bytes);
    EXPECT_TRUE(store->Cordons()->empty());
    ASSERT_TRUE(store->SetCordon("node-0", cordon).ok());
  }
  auto store = OpenOrDie(dir.path());
  EXPECT_EQ(store->generation(), 43);
  EXPECT_EQ(store->Cordons()->at("node-0").reason(), "a fan is broken");
}

TEST(SqliteStore, TheNodesThatAreKnownAreReplacedTogetherAndOutliveTheProcess) {
  const TempDir dir;
  v1::ListNodesResponse nodes;
  {
    auto store = OpenOrDie(dir.path());
    EXPECT_EQ(store->Nodes()->nodes_size(), 0);
    for (const char* name : {"a", "b"}) nodes.add_nodes()->set_name(name);
    ASSERT_TRUE(store->SetNodes(nodes).ok());
    nodes.mutable_nodes()->RemoveLast();
    ASSERT_TRUE(store->SetNodes(nodes).ok());
  }
  const auto stored = OpenOrDie(dir.path())->Nodes();
  ASSERT_TRUE(stored.ok()) << stored.status();
  ASSERT_EQ(stored->nodes_size(), 1);
  EXPECT_EQ(stored->nodes(0).name(), "a");
}

TEST(SqliteStore, ACordonIsReplacedAndRemovedAndOutlivesTheProcess) {
  const TempDir dir;
  v1::Cordon cordon;
  {
    auto store = OpenOrDie(dir.path());
    for (const char* reason : {"first", "second"}) {
      cordon.set_reason(reason);
      ASSERT_TRUE(store->SetCordon("b", cordon).ok());
    }
    ASSERT_TRUE(store->SetCordon("a", cordon).ok());
    ASSERT_TRUE(store->RemoveCordon("a").ok());
    EXPECT_TRUE(store->RemoveCordon("never").ok());
  }
  const auto cordons = OpenOrDie(dir.path())->Cordons();
  ASSERT_TRUE(cordons.ok());
  ASSERT_EQ(cordons->size(), 1u);
  EXPECT_EQ(cordons->at("b").reason(), "second");
}

TEST(SqliteStore, UpdatesManyJobsTogetherAndNoneThatIsNotThere) {
  const TempDir dir;
  auto store = OpenOrDie(dir.path());
  std::vector<v1::Job> jobs;
  for (int i = 0; i < 3; ++i) {
    jobs.push_back(MakeJob("j" + std::to_string(i), i));
    if (i < 2) {
      ASSERT_TRUE(store->Insert(jobs.back()).ok());
    }
    jobs.back().set_state(v1::JOB_STATE_RUNNING);
    jobs.back().set_reason("newer");
  }
  ASSERT_TRUE(store->UpdateAll({&jobs[0], &jobs[1], &jobs[2]}).ok());
  EXPECT_EQ(store->Get("j0")->reason(), "newer");
  EXPECT_EQ(store->Get("j1")->state(), v1::JOB_STATE_RUNNING);
  JobQuery running;
  running.states = {v1::JOB_STATE_RUNNING};
  EXPECT_EQ(store->List(running)->jobs.size(), 2u);
  EXPECT_TRUE(store->UpdateAll({}).ok());
}

TEST(SqliteStore, APageEndsWhenItHasItsBytes) {
  const TempDir dir;
  auto store = OpenOrDie(dir.path());
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
  EXPECT_EQ(store->List(query)->jobs.size(), 1u);  // Never none: the next page goes on after it.
}

TEST(SqliteStore, ReportsAnUnusableDirectory) {
  const TempDir dir;
  std::ofstream(dir.File("file")) << "x";
  EXPECT_EQ(SqliteStore::Open(dir.File("file")).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SqliteStore, SameRequestWithSameSpecIsTheSameJob) {
  const TempDir dir;
  auto store = OpenOrDie(dir.path());
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

TEST(SqliteStore, OneOfManyConcurrentInsertsOfARequestWins) {
  const TempDir dir;
  auto store = OpenOrDie(dir.path());
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

TEST(SqliteStore, RefusesADuplicateIdAndAnUpdateOfNothing) {
  const TempDir dir;
  auto store = OpenOrDie(dir.path());
  ASSERT_TRUE(store->Insert(MakeJob("a", 1)).ok());
  EXPECT_EQ(store->Insert(MakeJob("a", 2)).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store->Update(MakeJob("b", 1)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->Get("b").status().code(), absl::StatusCode::kNotFound);
}

TEST(SqliteStore, PagesThroughAThousandJobsNewestFirstWithoutGapOrRepeat) {
  const TempDir dir;
  auto store = OpenOrDie(dir.path());
  for (int i = 0; i < 1000; ++i) {
    // Ten jobs share each creation time: the id decides.
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
    query.cursor = {page->jobs.back().create_unix_nanos(), page->jobs.back().id()};
  }
  ASSERT_EQ(seen.size(), 1000u);
  EXPECT_EQ(seen.front(), "job-10999");
  EXPECT_TRUE(std::is_sorted(seen.rbegin(), seen.rend()));
}

TEST(SqliteStore, FiltersByStateAndLoadsLiveJobsOldestFirst) {
  const TempDir dir;
  auto store = OpenOrDie(dir.path());
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

TEST(SqliteStore, AFailedWriteIsReportedAndTheStoreGoesOnAfterwards) {
  const TempDir dir;
  auto store = OpenOrDie(dir.path());
  ASSERT_TRUE(store->Insert(MakeJob("before", 1)).ok());
  signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit tight = {64 << 10, old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  v1::Job large = MakeJob("large", 2);
  large.set_reason(std::string(1 << 20, 'x'));
  const absl::Status full = store->Insert(large).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  EXPECT_FALSE(full.ok());
  EXPECT_THAT(std::string(full.message()), HasSubstr("insert job large"));
  EXPECT_FALSE(store->Get("large").ok());
  EXPECT_TRUE(store->Insert(MakeJob("after", 3)).ok());
  EXPECT_TRUE(store->Get("before").ok());
}

TEST(SqliteStore, TakesNothingIntoAFileThatNobodyWillFind) {
  const TempDir dir;
  const std::string state = dir.File("state"), moved = dir.File("moved");
  const auto store = OpenOrDie(state);
  ASSERT_TRUE(store->Insert(MakeJob("before", 1)).ok());
  std::filesystem::rename(state, moved);
  const absl::Status refused = store->Insert(MakeJob("lost", 2)).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(state + "/fsdpd.db is no longer there"));
  EXPECT_TRUE(absl::IsUnavailable(store->Update(MakeJob("before", 1))));
  EXPECT_TRUE(store->Get("before").ok());
  std::filesystem::create_directories(state);
  std::ofstream(state + "/fsdpd.db") << "another";
  EXPECT_THAT(std::string(store->Insert(MakeJob("lost", 2)).status().message()),
              HasSubstr("is another file"));
  std::filesystem::remove_all(state);
  std::filesystem::rename(moved, state);
  EXPECT_TRUE(store->Insert(MakeJob("kept", 3)).ok());
}

v1::Job Ended(const std::string& id, int64_t create, int64_t end) {
  v1::Job job = MakeJob(id, create, v1::JOB_STATE_FAILED);
  job.set_end_unix_nanos(end);
  return job;
}

TEST(SqliteStore, ForgetsThoseThatEndedFirstWhenTheyCame) {
  const TempDir dir;
  auto store = OpenOrDie(dir.path());
  // The one that came first ended last, as one that trains for a month does.
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

TEST(SqliteStore, WhatGoesOnAfterItsEndIsNotForgotten) {
  const TempDir dir;
  auto store = OpenOrDie(dir.path());
  ASSERT_TRUE(store->Insert(Ended("a", 1, 10)).ok());
  ASSERT_TRUE(store->Insert(Ended("b", 2, 10)).ok());
  ASSERT_TRUE(store->Update(MakeJob("a", 1)).ok());
  const v1::Job b = MakeJob("b", 2, v1::JOB_STATE_RUNNING);
  ASSERT_TRUE(store->UpdateAll({&b}).ok());
  EXPECT_THAT(*store->ForgetEnded({0, absl::Nanoseconds(1)}, absl::FromUnixNanos(100), 10),
              ::testing::IsEmpty());
}

TEST(SqliteStore, ADeletedJobIsGoneAndItsRequestMayMakeAnother) {
  const TempDir dir;
  auto store = OpenOrDie(dir.path());
  v1::Job job = MakeJob("a", 1);
  job.set_request_id("r");
  ASSERT_TRUE(store->Insert(job).ok());
  ASSERT_TRUE(store->Delete("a").ok());
  EXPECT_EQ(store->Delete("a").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->Get("a").status().code(), absl::StatusCode::kNotFound);
  job.set_id("b");
  EXPECT_TRUE(store->Insert(job)->created);
}

// As the releases before this one made it.
constexpr char kFirstSchema[] = R"sql(
  CREATE TABLE jobs (id TEXT PRIMARY KEY NOT NULL, state INTEGER NOT NULL, create_nanos INTEGER NOT NULL,
                     request_id TEXT UNIQUE, job BLOB NOT NULL);
  CREATE INDEX jobs_by_time ON jobs (create_nanos, id);
  CREATE INDEX jobs_by_state ON jobs (state, create_nanos, id);
  CREATE TABLE counters (name TEXT PRIMARY KEY NOT NULL, value INTEGER NOT NULL);
  INSERT INTO counters VALUES ('generation', 7);
  PRAGMA user_version = 1;
)sql";

TEST(SqliteStore, BringsTheFirstSchemaUpToDateWithTheEndsAndFoldersOfItsJobs) {
  const TempDir dir;
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(dir.File("fsdpd.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, kFirstSchema, nullptr, nullptr, nullptr), SQLITE_OK);
  for (const v1::Job& job : {Ended("late", 1, 90), Ended("early", 2, 10),
                             SavingJob("waits", 3, v1::JOB_STATE_QUEUED, "/runs/7/")}) {
    sqlite3_stmt* insert = nullptr;
    ASSERT_EQ(sqlite3_prepare_v2(db, "INSERT INTO jobs VALUES (?,?,?,NULL,?)", -1, &insert, nullptr),
              SQLITE_OK);
    const std::string bytes = job.SerializeAsString();
    sqlite3_bind_text(insert, 1, job.id().c_str(), -1, SQLITE_TRANSIENT);
    sqlite3_bind_int64(insert, 2, job.state());
    sqlite3_bind_int64(insert, 3, job.create_unix_nanos());
    sqlite3_bind_blob(insert, 4, bytes.data(), static_cast<int>(bytes.size()), SQLITE_TRANSIENT);
    ASSERT_EQ(sqlite3_step(insert), SQLITE_DONE);
    sqlite3_finalize(insert);
  }
  sqlite3_close(db);
  for (int life = 0; life < 2; ++life) {
    auto store = OpenOrDie(dir.path());
    EXPECT_EQ(store->generation(), 8 + life);
    EXPECT_EQ(store->List(JobQuery())->jobs.size(), 3u - life);
    const auto forgotten = store->ForgetEnded({9, absl::Nanoseconds(50)}, absl::FromUnixNanos(100), 10);
    EXPECT_EQ(forgotten->size(), life == 0 ? 1u : 0u);
    if (life == 0) {
      EXPECT_EQ(forgotten->at(0), "early");
    }
    EXPECT_EQ(store->LiveJobs()->size(), 1u);
    EXPECT_EQ(store->Insert(SavingJob("other", 4, v1::JOB_STATE_QUEUED, "/runs/7")).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

TEST(SqliteStore, AFolderHasOneJobThatHasNotEnded) {
  const TempDir dir;
  const auto store = OpenOrDie(dir.path());
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
      << "it would be the second";
  EXPECT_EQ(store->Get("a")->state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(store->Update(SavingJob("b", 5, v1::JOB_STATE_RUNNING, "/runs/7")).ok());
  JobQuery query;
  query.folder = "/runs/7";
  const auto sharing = store->List(query);
  ASSERT_TRUE(sharing.ok()) << sharing.status();
  ASSERT_EQ(sharing->jobs.size(), 2U);
  EXPECT_EQ(sharing->jobs[0].id(), "b");
}

TEST(SqliteStore, TheSameRequestIsNotInItsOwnWay) {
  const TempDir dir;
  const auto store = OpenOrDie(dir.path());
  v1::Job job = SavingJob("a", 1, v1::JOB_STATE_QUEUED, "/runs/7");
  job.set_request_id("r");
  ASSERT_TRUE(store->Insert(job).ok());
  job.set_id("b");
  const auto again = store->Insert(job);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->created);
  EXPECT_EQ(again->job.id(), "a");
}

TEST(SqliteStore, OneOfManyConcurrentInsertsIntoAFolderWins) {
  const TempDir dir;
  const auto store = OpenOrDie(dir.path());
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

}  // namespace
}  // namespace fsdpd
