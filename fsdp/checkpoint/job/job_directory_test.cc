#include "fsdp/checkpoint/job/job_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

void MakeCheckpoint(const std::string& dir, int64_t step, bool committed = true) {
  const std::string path = CheckpointPath(dir, step);
  fs::create_directories(path);
  std::ofstream(path + "/__0_0.distcp") << "numbers";
  if (!committed) return;
  std::ofstream(path + "/.fsdpd_sums") << "sums";
  std::ofstream(path + "/.metadata") << "metadata";
}

std::vector<int64_t> StepsIn(const std::string& dir) {
  const auto found = ListCheckpoints(dir);
  EXPECT_TRUE(found.ok()) << found.status();
  std::vector<int64_t> steps;
  for (const FoundCheckpoint& each : *found) steps.push_back(each.committed ? each.step : -each.step);
  return steps;
}

bool AllOwn(const std::string&) { return true; }

TEST(JobDirectory, ListsNewestFirstWithCommitState) {
  const TempDir dir;
  for (const int64_t step : {5, 20, 100}) MakeCheckpoint(dir.path(), step, step != 20);
  for (const char* other : {"iter_5", "iter_0000005.damaged", "iter_00000x5", "iter_-000005", "notes"})
    fs::create_directories(dir.File(other));
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(100, -20, 5));
}

TEST(JobDirectory, FindsStepsBeyondSevenDigits) {
  const TempDir dir;
  EXPECT_EQ(CheckpointPath("/runs", 7), "/runs/iter_0000007");
  EXPECT_EQ(CheckpointPath("/runs", 123456789), "/runs/iter_123456789");
  MakeCheckpoint(dir.path(), 123456789);
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(123456789));
}

TEST(JobDirectory, MissingDirectoryIsEmpty) {
  const TempDir dir;
  EXPECT_THAT(StepsIn(dir.File("none")), ElementsAre());
}

TEST(JobDirectory, RemovesOldAndKeepsRequested) {
  const TempDir dir;
  for (int64_t step = 10; step <= 60; step += 10) MakeCheckpoint(dir.path(), step, step != 30);
  MakeCheckpoint(dir.path(), 70, /*committed=*/false);  // The next save.
  const absl::Status status = RemoveOld(dir.path(), 60, /*keep_last=*/2, /*keep_every=*/20, AllOwn);
  ASSERT_TRUE(status.ok()) << status;
  // 30 was left incomplete by an earlier attempt.
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(-70, 60, 50, 40, 20));
}

TEST(JobDirectory, IgnoresCheckpointsOfOtherRuns) {
  const TempDir dir;
  for (int64_t step = 1; step <= 6; ++step) MakeCheckpoint(dir.path(), step);
  const auto is_own = [&](const std::string& path) { return path > CheckpointPath(dir.path(), 3); };
  ASSERT_TRUE(RemoveOld(dir.path(), 6, /*keep_last=*/2, 0, is_own).ok());
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(6, 5, 3, 2, 1));
}

TEST(JobDirectory, RemovesOnlyCheckpointFiles) {
  const TempDir dir;
  for (const int64_t step : {1, 2}) MakeCheckpoint(dir.path(), step);
  const std::string notes = CheckpointPath(dir.path(), 1) + "/notes.txt";
  std::ofstream(notes) << "mine";
  ASSERT_TRUE(RemoveOld(dir.path(), 2, 1, 0, AllOwn).ok());
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(2, -1));
  EXPECT_TRUE(fs::exists(notes));
  EXPECT_FALSE(fs::exists(CheckpointPath(dir.path(), 1) + "/__0_0.distcp"));
}

TEST(JobDirectory, RemovesLeftoversOfKilledCommit) {
  const TempDir dir;
  for (const int64_t step : {1, 2}) MakeCheckpoint(dir.path(), step, step == 2);
  for (const char* name :
       {".metadata.abc.tmp", ".fsdpd_sums", ".fsdpd_sums.abc.tmp", "__1_0.distcp.abc.part"})
    std::ofstream(CheckpointPath(dir.path(), 1) + "/" + name) << "half";
  ASSERT_TRUE(RemoveOld(dir.path(), 2, 1, 0, AllOwn).ok());
  EXPECT_FALSE(fs::exists(CheckpointPath(dir.path(), 1)));
}

TEST(JobDirectory, ContinuesAfterFailedRemoval) {
  const TempDir dir;
  for (const int64_t step : {1, 2, 3}) MakeCheckpoint(dir.path(), step);
  fs::create_directories(CheckpointPath(dir.path(), 2) + "/__1_0.distcp");
  EXPECT_THAT(RemoveOld(dir.path(), 3, 1, 0, AllOwn).message(),
              ::testing::HasSubstr("iter_0000002/__1_0.distcp"));
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(3, -2));
}

// Like an unresponsive server: looking for .metadata fails with an error other than "not found".
TEST(JobDirectory, TreatsUnreadableCheckpointAsCommitted) {
  const TempDir dir;
  for (const int64_t step : {1, 2, 3}) MakeCheckpoint(dir.path(), step, step != 1);
  fs::create_symlink(".metadata", CheckpointPath(dir.path(), 1) + "/.metadata");  // A link to itself.
  ASSERT_TRUE(RemoveOld(dir.path(), 3, /*keep_last=*/3, 0, AllOwn).ok());
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(3, 2, 1));
  EXPECT_TRUE(fs::exists(CheckpointPath(dir.path(), 1) + "/__0_0.distcp"));
}

TEST(JobDirectory, RemovesOnlyUnfinishedFiles) {
  const TempDir dir;
  for (const int64_t step : {1, 2}) MakeCheckpoint(dir.path(), step, step == 1);
  for (const int64_t step : {1, 2, 3}) {
    fs::create_directories(CheckpointPath(dir.path(), step));
    for (const char* name : {"__1_0.distcp.abc.part", ".metadata.abc.tmp", ".fsdpd_sums.tmp"})
      std::ofstream(CheckpointPath(dir.path(), step) + "/" + name) << "half";
  }
  std::ofstream(CheckpointPath(dir.path(), 2) + "/thesis.part") << "mine";
  for (const char* directory : {"hf", "hf.part", "hf.mine.part", "hf.2.part"})
    fs::create_directories(dir.File(directory));
  std::ofstream(dir.File("hf.2.part/config.json")) << "half";
  std::ofstream(dir.File("hf/__1_0.distcp.abc.part")) << "somebody's";
  const auto removed = RemoveUnfinished(dir.path());
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(*removed, 10);
  EXPECT_FALSE(fs::exists(dir.File("hf.2.part")));
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(-2, 1)) << "of the third nothing is left";
  for (const char* kept : {"iter_0000001/__0_0.distcp", "iter_0000002/__0_0.distcp",
                           "iter_0000002/thesis.part", "hf/__1_0.distcp.abc.part", "hf.part", "hf.mine.part"})
    EXPECT_TRUE(fs::exists(dir.File(kept))) << kept;
  EXPECT_FALSE(fs::exists(dir.File("iter_0000001/__1_0.distcp.abc.part")));
  EXPECT_EQ(*RemoveUnfinished(dir.path()), 0);
  EXPECT_EQ(*RemoveUnfinished(dir.File("absent")), 0);
}

TEST(JobDirectory, SetAsideReplacesEarlierDamagedCheckpoint) {
  const TempDir dir;
  MakeCheckpoint(dir.path(), 1);
  const std::string path = CheckpointPath(dir.path(), 1);
  ASSERT_TRUE(SetAside(path).ok());
  MakeCheckpoint(dir.path(), 1);
  std::ofstream(path + "/second") << "x";
  ASSERT_TRUE(SetAside(path).ok());
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(path + ".damaged/second"));
  EXPECT_THAT(SetAside(path).message(), ::testing::HasSubstr("rename " + path));
}

TEST(JobDirectory, FailedRecordLeavesNothing) {
  const TempDir dir;
  // A directory, which a rename cannot replace.
  fs::create_directories(dir.File("latest_checkpointed_iteration.txt"));
  EXPECT_FALSE(RecordNewest(dir.path(), 90).ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
}

TEST(JobDirectory, RecordsNewestForOtherTools) {
  const TempDir dir;
  ASSERT_TRUE(RecordNewest(dir.path(), 90).ok());
  ASSERT_TRUE(RecordNewest(dir.path(), 100).ok());
  std::ostringstream text;
  text << std::ifstream(dir.File("latest_checkpointed_iteration.txt")).rdbuf();
  EXPECT_EQ(text.str(), "100");
}

}  // namespace
}  // namespace fsdpd
