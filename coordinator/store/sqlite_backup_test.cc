#include "coordinator/store/sqlite_backup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "base/temp_dir.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/testing/full_disk.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::FromCivil(absl::CivilDay(2026, 11, 23), absl::UTCTimeZone());

v1::Job MakeJob(const std::string& id) {
  v1::Job job;
  job.set_id(id);
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_create_unix_nanos(1);
  return job;
}

std::unique_ptr<SqliteStore> OpenOrDie(const std::string& dir) {
  auto store = SqliteStore::Open(dir);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? std::move(*store) : nullptr;
}

std::string Files(const std::string& dir) {
  std::string names;
  for (const auto& entry : std::filesystem::directory_iterator(dir))
    names += entry.path().filename().string() + " ";
  return names;
}

TEST(SqliteBackup, BacksUpOpenStoreToOneFile) {
  const TempDir dir, copies;
  const std::string file = copies.File("state.backup");
  {
    const auto store = OpenOrDie(dir.path());
    ASSERT_TRUE(store->Insert(MakeJob("before")).ok());
    const auto copied = BackUp(dir.path(), file);
    ASSERT_TRUE(copied.ok()) << copied.status();
    EXPECT_EQ(copied->jobs, 1);
    ASSERT_TRUE(store->Insert(MakeJob("after")).ok()) << "the store continues";
  }
  EXPECT_EQ(Files(copies.path()), "state.backup ");
  const auto restored = Restore(file, copies.File("state"), kNow);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(Files(copies.File("state")), "fsdpd.db ");
  const auto store = OpenOrDie(copies.File("state"));
  EXPECT_TRUE(store->Get("before").ok());
  EXPECT_TRUE(absl::IsNotFound(store->Get("after").status()));
}

TEST(SqliteBackup, BackupIsConsistentDuringWrites) {
  const TempDir dir, copies;
  const auto store = OpenOrDie(dir.path());
  std::atomic<bool> done{false};
  std::atomic<int> stored{0};
  std::thread writer([&] {
    while (!done && store->Insert(MakeJob("job-" + std::to_string(stored))).ok()) ++stored;
  });
  for (int i = 0; i < 5; ++i) {
    const int before = stored;
    const auto copied = BackUp(dir.path(), copies.File(std::to_string(i)));
    ASSERT_TRUE(copied.ok()) << copied.status();
    EXPECT_GE(copied->jobs, before);
  }
  const int at_end = stored;
  while (stored == at_end) std::this_thread::yield();  // The writer is not blocked.
  done = true;
  writer.join();
}

TEST(SqliteBackup, RestoreIncreasesGeneration) {
  const TempDir dir, copies;
  const std::string file = copies.File("state.backup");
  OpenOrDie(dir.path()).reset();
  ASSERT_TRUE(BackUp(dir.path(), file).ok());
  int64_t newest = 0;
  for (int life = 0; life < 3; ++life) newest = OpenOrDie(dir.path())->generation();
  for (int restore = 0; restore < 2; ++restore) {
    const std::string made = copies.File("state" + std::to_string(restore));
    ASSERT_TRUE(Restore(file, made, kNow + restore * absl::Minutes(1)).ok());
    const int64_t generation = OpenOrDie(made)->generation();
    EXPECT_GT(generation, newest);
    EXPECT_LT(generation, int64_t{1} << 31) << "stream generations have 31 bits for it";
    for (int life = 0; life < 3; ++life) newest = OpenOrDie(made)->generation();
  }
}

TEST(SqliteBackup, RefusesToOverwrite) {
  const TempDir dir, copies;
  const std::string file = copies.File("state.backup");
  OpenOrDie(dir.path()).reset();
  ASSERT_TRUE(BackUp(dir.path(), file).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(BackUp(dir.path(), file).status()));
  const absl::Status refused = Restore(file, dir.path(), kNow).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(dir.path() + ": directory is not empty"));
}

TEST(SqliteBackup, ReportsMissingPaths) {
  const TempDir dir;
  EXPECT_TRUE(absl::IsNotFound(BackUp(dir.path(), dir.File("to")).status()));
  EXPECT_TRUE(absl::IsNotFound(Restore(dir.File("no"), dir.File("state"), kNow).status()));
  EXPECT_THAT(std::string(BackUp(dir.path(), dir.File("no/to")).status().message()),
              HasSubstr("no such file [FILE_ERROR]"));
  OpenOrDie(dir.File("state")).reset();
  EXPECT_EQ(BackUp(dir.File("state"), dir.File("no/to")).status().message(),
            dir.File("no") + ": no such directory; create it first [FILE_ERROR]");
  EXPECT_EQ(Restore(dir.File("state"), dir.File("a/b"), kNow).status().message(),
            dir.File("state") + ": is a directory (want a file) [FILE_ERROR]");
  EXPECT_EQ(Files(dir.path()), "state ") << "a refused restore leaves no directory";
}

// Regression: a std::filesystem exception terminated the program. Root may enter any directory, so for root
// the test uses a path below a file.
TEST(SqliteBackup, ReportsInaccessibleDirectory) {
  const TempDir dir;
  OpenOrDie(dir.File("state")).reset();
  std::filesystem::create_directory(dir.File("locked"));
  std::ofstream(dir.File("file")) << "x";
  std::filesystem::permissions(dir.File("locked"), std::filesystem::perms::none);
  const bool root = geteuid() == 0;
  const std::string closed = root ? dir.File("file") : dir.File("locked");
  const std::string why = root ? "Not a directory" : "Permission denied";
  const auto backup = BackUp(closed + "/state", dir.File("to"));
  EXPECT_THAT(std::string(backup.status().message()), HasSubstr(why));
  EXPECT_THAT(std::string(BackUp(dir.File("state"), closed + "/to").status().message()),
              HasSubstr(root ? "not a directory" : why));
  EXPECT_THAT(std::string(Restore(closed + "/from", dir.File("made"), kNow).status().message()),
              HasSubstr(why));
  EXPECT_FALSE(Restore(dir.File("state") + "/fsdpd.db", closed + "/made", kNow).ok());
  std::filesystem::permissions(dir.File("locked"), std::filesystem::perms::all);
  EXPECT_FALSE(std::filesystem::exists(dir.File("made")));
}

TEST(SqliteBackup, IgnoresLostAndFound) {
  const TempDir dir;
  OpenOrDie(dir.File("state")).reset();
  ASSERT_TRUE(BackUp(dir.File("state"), dir.File("copy")).ok());
  std::filesystem::create_directories(dir.File("volume/lost+found"));
  const auto restored = Restore(dir.File("copy"), dir.File("volume"), kNow);
  EXPECT_TRUE(restored.ok()) << restored.status();
}

// Regression: after a restore, a job's data path named another file.
TEST(SqliteBackup, DetectsChangedByteInJob) {
  const TempDir dir;
  v1::Job job = MakeJob("j");
  job.set_reason("reads corpus.txt");
  ASSERT_TRUE(OpenOrDie(dir.File("state"))->Insert(job).ok());
  ASSERT_TRUE(BackUp(dir.File("state"), dir.File("copy")).ok());
  std::stringstream text;
  text << std::ifstream(dir.File("copy"), std::ios::binary).rdbuf();
  std::string bytes = text.str();
  const size_t at = bytes.find("corpus.txt");
  ASSERT_NE(at, std::string::npos);
  bytes[at + 5] = 'S';
  std::ofstream(dir.File("changed"), std::ios::binary) << bytes;
  const absl::Status refused = Restore(dir.File("changed"), dir.File("made"), kNow).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(": damaged: checksum mismatch"));
  EXPECT_FALSE(std::filesystem::exists(dir.File("made")));
  ASSERT_TRUE(Restore(dir.File("copy"), dir.File("made"), kNow).ok());
  ASSERT_TRUE(OpenOrDie(dir.File("made"))->Insert(MakeJob("later")).ok());
  ASSERT_TRUE(BackUp(dir.File("made"), dir.File("again")).ok());
  EXPECT_TRUE(Restore(dir.File("again"), dir.File("twice"), kNow).ok()) << "with its own checksum";
  EXPECT_TRUE(Restore(dir.File("made/fsdpd.db"), dir.File("plain"), kNow).ok()) << "without a checksum";
}

TEST(SqliteBackup, RejectsDamagedPages) {
  const TempDir dir;
  {
    const auto store = OpenOrDie(dir.File("state"));
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(store->Insert(MakeJob("job-" + std::to_string(i))).ok());
  }
  const std::string file = dir.File("state.backup");
  ASSERT_TRUE(BackUp(dir.File("state"), file).ok());
  const int64_t bytes = static_cast<int64_t>(std::filesystem::file_size(file));
  int refused = 0;
  for (int64_t at = 0; at < bytes; at += 4096) {
    const std::string damaged = dir.File("damaged"), made = dir.File("made");
    std::filesystem::copy_file(file, damaged, std::filesystem::copy_options::overwrite_existing);
    {
      std::fstream stream(damaged, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekp(at);
      stream << std::string(4096, '\xff');
    }
    std::filesystem::remove_all(made);
    const auto restored = Restore(damaged, made, kNow);
    if (restored.ok()) continue;  // An unused page.
    ++refused;
    EXPECT_TRUE(absl::IsDataLoss(restored.status())) << restored.status();
    EXPECT_FALSE(std::filesystem::exists(made));
  }
  EXPECT_GE(refused, 5);
  std::filesystem::resize_file(file, 4096 + 100);
  EXPECT_TRUE(absl::IsDataLoss(Restore(file, dir.File("torn"), kNow).status()));
}

// A copied file has no checksum, and SQLite does not check the content of blobs.
TEST(SqliteBackup, RejectsUnparsableMessages) {
  for (const std::string damage :
       {"events SET event = x'ff'", "events SET event = x''", "nodes SET node = x''",
        "cordons SET cordon = x'ff'", "nodes SET node = x'ff'", "jobs SET job = x'ff'",
        "jobs SET id = 'another'"}) {
    const TempDir dir;
    {
      const auto store = OpenOrDie(dir.File("state"));
      ASSERT_TRUE(store->Insert(MakeJob("j")).ok());
      v1::Event cordoned;
      cordoned.set_node("a");
      ASSERT_TRUE(store->SetCordon("a", {}, {cordoned}).ok());
      v1::ListNodesResponse nodes;
      nodes.add_nodes()->set_name("a");
      ASSERT_TRUE(store->UpdateNodes(nodes, {}).ok());
    }
    ASSERT_TRUE(Restore(dir.File("state/fsdpd.db"), dir.File("whole"), kNow).ok());
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(dir.File("state/fsdpd.db").c_str(), &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, ("UPDATE " + damage).c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(db);
    const absl::Status refused = Restore(dir.File("state/fsdpd.db"), dir.File("made"), kNow).status();
    EXPECT_TRUE(absl::IsDataLoss(refused)) << damage << ": " << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(": damaged: "));
    EXPECT_FALSE(std::filesystem::exists(dir.File("made")));
  }
}

// Regression: the coordinator started with an empty state after a restore that was killed.
TEST(SqliteBackup, ReplacesPartialFileOfKilledRestore) {
  const TempDir dir;
  OpenOrDie(dir.File("state")).reset();
  const std::string file = dir.File("state.backup"), restored = dir.File("restored");
  ASSERT_TRUE(BackUp(dir.File("state"), file).ok());
  ASSERT_TRUE(std::filesystem::create_directory(restored));
  std::ofstream(restored + "/fsdpd.db.new") << "the first pages";
  const absl::Status refused = SqliteStore::Open(restored).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a restore that did not finish"));
  EXPECT_TRUE(Restore(file, restored, kNow).ok());
  EXPECT_TRUE(SqliteStore::Open(restored).ok());
}

TEST(SqliteBackup, RejectsNewerSchemaAndOtherFiles) {
  const TempDir dir;
  OpenOrDie(dir.File("state")).reset();
  const std::string file = dir.File("state.backup");
  ASSERT_TRUE(BackUp(dir.File("state"), file).ok());
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(file.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA user_version=99", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  const absl::Status newer = Restore(file, dir.File("newer"), kNow).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(newer));
  EXPECT_THAT(std::string(newer.message()), HasSubstr("schema 99"));
  std::ofstream(dir.File("text")) << std::string(8192, 'x');
  EXPECT_TRUE(absl::IsDataLoss(Restore(dir.File("text"), dir.File("other"), kNow).status()));
  std::ofstream(dir.File("nothing")).flush();
  EXPECT_TRUE(absl::IsDataLoss(Restore(dir.File("nothing"), dir.File("none"), kNow).status()));
}

TEST(SqliteBackup, FullDiskLeavesNoFile) {
  const TempDir dir, copies;
  OpenOrDie(dir.path()).reset();
  std::optional<FullDisk> full(std::in_place);
  const absl::Status status = BackUp(dir.path(), copies.File("state.backup")).status();
  full.reset();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(Files(copies.path()), "");
}

}  // namespace
}  // namespace fsdpd
