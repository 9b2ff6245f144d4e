#include "agent/logs/job_directories.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <mutex>

#include "agent/logs/removed_files.h"
#include "base/temp_dir.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class JobDirectoriesTest : public ::testing::Test {
 protected:
  // Writes a log of a job with a write time this many hours ago.
  void Write(const std::string& job_id, int hours_ago, int attempt = 1) {
    const fs::path directory = fs::path(dir_.path()) / job_id / ("attempt-" + std::to_string(attempt));
    fs::create_directories(directory);
    const fs::path log = directory / "rank-0.log";
    std::ofstream(log) << "a line\n";
    const fs::file_time_type when = now_ - std::chrono::hours(hours_ago);
    for (const fs::path& path : {log, directory, directory.parent_path()}) fs::last_write_time(path, when);
  }
  // Writes a segment of step records with a write time this many hours ago (step_records.h).
  void WriteSteps(const std::string& job_id, int hours_ago) {
    const fs::path directory = fs::path(dir_.path()) / job_id / "steps";
    fs::create_directories(directory);
    const fs::path segment = directory / "attempt-1.began-1.from-1.jsonl";
    std::ofstream(segment) << "{\"step\":1}\n";
    const fs::file_time_type when = now_ - std::chrono::hours(hours_ago);
    for (const fs::path& path : {segment, directory, directory.parent_path()})
      fs::last_write_time(path, when);
  }
  bool Has(const std::string& job_id) { return fs::exists(fs::path(dir_.path()) / job_id); }
  // The first round of its thread is over before a file is written.
  std::unique_ptr<JobDirectories> Keep(int64_t jobs, absl::Duration time = absl::InfiniteDuration()) {
    auto directories =
        std::make_unique<JobDirectories>(dir_.path(), JobDirectoriesOptions{jobs, time}, [this] {
          ++rounds_;
          const std::lock_guard<std::mutex> lock(hosting_);
          return hosted_;
        });
    while (rounds_ == 0) std::this_thread::yield();
    return directories;
  }

  TempDir dir_;
  const fs::file_time_type now_ = fs::file_time_type::clock::now();
  std::mutex hosting_;
  std::map<std::string, std::set<int>> hosted_;
  std::atomic<int> rounds_{0};
};

TEST_F(JobDirectoriesTest, RemovesOldestBeyondKeepJobs) {
  const auto directories = Keep(2);
  Write("old", 3);
  Write("new", 1);
  Write("middle", 2);
  EXPECT_THAT(directories->Prune(now_), ElementsAre("old"));
  EXPECT_TRUE(Has("new"));
  EXPECT_TRUE(Has("middle"));
  EXPECT_FALSE(Has("old"));
}

TEST_F(JobDirectoriesTest, RemovesPackagesOfEndedAttempts) {
  const auto directories = Keep(2);
  const auto unpack = [&](const char* attempt) {
    Write("job", 1, attempt[0] - '0');
    const fs::path graphs =
        fs::path(dir_.path()) / "job" / ("attempt-" + std::string(attempt)) / "package/graphs";
    fs::create_directories(graphs);
    std::ofstream(graphs / "forward.so") << "code";
    return graphs.parent_path();
  };
  const fs::path first = unpack("1"), second = unpack("2");
  {
    const std::lock_guard<std::mutex> lock(hosting_);
    hosted_ = {{"job", {2}}};
  }
  EXPECT_THAT(directories->Prune(now_), IsEmpty());
  EXPECT_FALSE(fs::exists(first)) << "left by an agent that was killed";
  EXPECT_TRUE(fs::exists(second));
  {
    const std::lock_guard<std::mutex> lock(hosting_);
    hosted_.clear();
  }
  directories->EndAttempt({"job", 2});  // Its thread removes it now, and not ten minutes later.
  while (fs::exists(second)) std::this_thread::yield();
  EXPECT_TRUE(fs::exists(second.parent_path() / "rank-0.log"));
}

// Regression: logs of running ranks were removed, because running jobs were read once, before the first
// removal.
TEST_F(JobDirectoriesTest, KeepsAJobLaunchedDuringRemoval) {
  std::atomic<int> asked{0};
  JobDirectories directories(dir_.path(), {/*keep_jobs=*/1}, [this, &asked] {
    ++asked;
    const bool launched = Has("new") && !Has("middle");
    return launched ? std::map<std::string, std::set<int>>{{"old", {1}}}
                    : std::map<std::string, std::set<int>>();
  });
  while (asked == 0) std::this_thread::yield();
  Write("old", 3);
  Write("middle", 2);
  Write("new", 1);
  EXPECT_THAT(directories.Prune(now_), ElementsAre("middle"));
  EXPECT_TRUE(Has("old"));
}

// Regression: a job that failed repeatedly filled the disk, because attempts of a running job were never
// removed.
TEST_F(JobDirectoriesTest, RemovesOldAttemptsOfARunningJobBeyondMaxBytes) {
  hosted_ = {{"runs", {3}}};
  const auto has = [this](const std::string& path) { return fs::exists(fs::path(dir_.path()) / path); };
  for (int attempt = 1; attempt <= 3; ++attempt) {
    Write("runs", 10 - attempt, attempt);
    std::ofstream(dir_.path() + "/runs/attempt-" + std::to_string(attempt) + "/rank-0.log")
        << std::string(1 << 20, 'x');
    fs::last_write_time(dir_.path() + "/runs/attempt-" + std::to_string(attempt) + "/rank-0.log",
                        now_ - std::chrono::hours(10 - attempt));
  }
  WriteSteps("runs", 9);
  Write("ended", 5);
  JobDirectoriesOptions options;
  options.max_bytes = 5 << 19;  // Size of 2.5 attempts.
  {
    const JobDirectories directories(dir_.path(), options, [&] { return hosted_; });
    while (has("runs/attempt-1")) std::this_thread::yield();
  }
  EXPECT_FALSE(has("runs/steps")) << "of attempt 1";
  EXPECT_TRUE(has("runs/attempt-2"));
  EXPECT_TRUE(has("runs/attempt-3"));
  EXPECT_TRUE(has("ended"));
  options.max_bytes = 1;
  hosted_ = {{"runs", {2, 3}}};
  {
    const JobDirectories directories(dir_.path(), options, [&] { return hosted_; });
    while (has("ended/attempt-1")) std::this_thread::yield();
  }
  EXPECT_TRUE(has("runs/attempt-2")) << "it runs still";
  hosted_ = {{"runs", {3}}};
  {
    const JobDirectories directories(dir_.path(), options, [&] { return hosted_; });
    while (has("runs/attempt-2")) std::this_thread::yield();
  }
  EXPECT_TRUE(has("runs/attempt-3"));
}

// Writing the record must not make its job the newest: a whole job would be removed in its place.
TEST_F(JobDirectoriesTest, AJobIsNoYoungerForTheRecordOfWhatWasRemovedAndGoesByAge) {
  Write("old", 3);
  Write("new", 1);
  JobDirectoriesOptions options;
  options.max_bytes = 1;
  hosted_ = {{"new", {1}}};
  {
    const JobDirectories directories(dir_.path(), options, [&] { return hosted_; });
    while (fs::exists(fs::path(dir_.path()) / "old/attempt-1")) std::this_thread::yield();
  }
  EXPECT_TRUE(Has("old/removed"));
  hosted_.clear();
  const JobDirectories directories(dir_.path(), {/*keep_jobs=*/1}, [&] { return hosted_; });
  while (Has("old") && Has("new")) std::this_thread::yield();
  EXPECT_TRUE(Has("new/attempt-1"));
}

// The job directory is as old as its last attempt's start, and the log that made the job young was removed.
TEST_F(JobDirectoriesTest, ARecordIsNotRemovedBecauseTheNewestLogIsGone) {
  const std::vector<std::string> jobs = {"logs-only", "with-steps"};
  for (const std::string& job : jobs) Write(job, 1);
  WriteSteps("with-steps", 1);
  for (const std::string& job : jobs)
    fs::last_write_time(fs::path(dir_.path()) / job, now_ - std::chrono::hours(50));
  JobDirectoriesOptions options;
  options.max_bytes = 1;
  {
    const JobDirectories directories(dir_.path(), options, [&] { return hosted_; });
    for (const std::string& job : jobs) {
      while (Has(job + "/attempt-1")) std::this_thread::yield();
    }
  }
  EXPECT_FALSE(Has("with-steps/steps"));
  EXPECT_THAT(Keep(10, absl::Hours(24))->Prune(now_), IsEmpty());
  for (const std::string& job : jobs) {
    ASSERT_TRUE(Has(job + "/removed")) << job;
    EXPECT_LE(fs::last_write_time(fs::path(dir_.path()) / job), now_ - std::chrono::hours(1)) << job;
  }
}

// For this thread and those that it starts: root writes into each directory otherwise.
void RespectFileModes() {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  ASSERT_EQ(syscall(SYS_capget, &header, sets), 0);
  sets[0].effective &= ~(1U << CAP_DAC_OVERRIDE);
  ASSERT_EQ(syscall(SYS_capset, &header, sets), 0);
}

// A segment of steps that could not be removed left the removed logs out of the record.
TEST_F(JobDirectoriesTest, RemovedLogsAreRecordedWhenTheStepsCannotBeRemoved) {
  Write("a-job", 1);
  WriteSteps("a-job", 1);
  const fs::path steps = fs::path(dir_.path()) / "a-job" / "steps";
  fs::permissions(steps, fs::perms::owner_write, fs::perm_options::remove);
  JobDirectoriesOptions options;
  options.max_bytes = 1;
  std::thread([&] {
    RespectFileModes();
    const JobDirectories directories(dir_.path(), options, [&] { return hosted_; });
    while (Has("a-job/attempt-1")) std::this_thread::yield();
  }).join();
  EXPECT_TRUE(Has("a-job/steps/attempt-1.began-1.from-1.jsonl"));
  EXPECT_THAT(RanksRemoved(dir_.path(), {"a-job", 1}, ".log"), ElementsAre(0));
  fs::permissions(steps, fs::perms::owner_write, fs::perm_options::add);
}

TEST_F(JobDirectoriesTest, WhatWasWrittenLastCountsAndNotWhenTheJobCame) {
  const auto directories = Keep(1);
  Write("long-ago", 50);
  Write("recent", 5);
  Write("long-ago", 1, /*attempt=*/2);
  fs::last_write_time(fs::path(dir_.path()) / "long-ago", now_ - std::chrono::hours(50));
  EXPECT_THAT(directories->Prune(now_), ElementsAre("recent"));
}

TEST_F(JobDirectoriesTest, RemovesExpiredJobs) {
  const auto directories = Keep(10, absl::Hours(24));
  Write("old", 25);
  Write("new", 23);
  EXPECT_THAT(directories->Prune(now_), ElementsAre("old"));
}

TEST_F(JobDirectoriesTest, RemovesStepsWithLogs) {
  const auto directories = Keep(10, absl::Hours(24));
  Write("old", 25);
  WriteSteps("old", 25);
  Write("steps-are-new", 50);
  WriteSteps("steps-are-new", 23);
  fs::last_write_time(fs::path(dir_.path()) / "steps-are-new", now_ - std::chrono::hours(50));
  EXPECT_THAT(directories->Prune(now_), ElementsAre("old"));
  EXPECT_TRUE(Has("steps-are-new"));
  EXPECT_THAT(directories->Prune(now_ + std::chrono::hours(2)), ElementsAre("steps-are-new"));
}

// Regression: step records stayed forever, because a directory without logs did not count as that of a job.
TEST_F(JobDirectoriesTest, RemovesExpiredStepsWithoutLogs) {
  const auto directories = Keep(10, absl::Hours(24));
  WriteSteps("old", 25);
  WriteSteps("new", 23);
  EXPECT_THAT(directories->Prune(now_), ElementsAre("old"));
  EXPECT_FALSE(Has("old"));
  directories->Forget("new");
  directories->Prune(now_);
  while (Has("new")) std::this_thread::yield();
}

TEST_F(JobDirectoriesTest, KeepsRunningJobs) {
  hosted_ = {{"runs", {1}}};
  const auto directories = Keep(1, absl::Hours(1));
  Write("runs", 30);
  Write("new", 0);
  directories->Forget("runs");
  directories->Prune(now_);
  EXPECT_TRUE(Has("runs"));
}

TEST_F(JobDirectoriesTest, RemovesForgottenJobsImmediately) {
  const auto directories = Keep(10);
  Write("deleted", 0);
  Write("other", 0);
  directories->Forget("deleted");
  // Removed by its thread or by this round.
  directories->Prune(now_);
  while (Has("deleted")) std::this_thread::yield();
  EXPECT_TRUE(Has("other"));
}

TEST_F(JobDirectoriesTest, RemovesForgottenRunningJobsLater) {
  const auto directories = Keep(9);
  Write("stops", 1);
  {
    const std::lock_guard<std::mutex> lock(hosting_);
    hosted_ = {{"stops", {1}}};
  }
  directories->Forget("stops");
  directories->Prune(now_);
  EXPECT_TRUE(Has("stops"));
  {
    const std::lock_guard<std::mutex> lock(hosting_);
    hosted_.clear();
  }
  while (Has("stops")) directories->Prune(now_);  // Its thread may still run an earlier round.
}

TEST_F(JobDirectoriesTest, KeepsOtherFiles) {
  const auto directories = Keep(0);
  fs::create_directories(fs::path(dir_.path()) / "no-job");
  fs::create_directories(fs::path(dir_.path()) / "no-steps" / "steps");
  fs::create_directories(fs::path(dir_.path()) / "Not_An_Id" / "attempt-1");
  std::ofstream(dir_.File("LOCK")) << "7";
  const TempDir elsewhere;
  fs::create_directories(fs::path(elsewhere.path()) / "attempt-1");
  fs::create_directory_symlink(elsewhere.path(), fs::path(dir_.path()) / "a-link");
  directories->Forget("../" + fs::path(elsewhere.path()).filename().string());
  EXPECT_THAT(directories->Prune(now_), IsEmpty());
  EXPECT_TRUE(fs::exists(fs::path(elsewhere.path()) / "attempt-1"));
}

}  // namespace
}  // namespace fsdpd
