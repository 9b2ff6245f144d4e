// Directories that jobs have left in an agent's work dir (WORK_DIR/JOB, log_keeper.h): retention by number
// and age. The directories with the oldest last write are removed first; the directory of a running job is
// kept. The directory of a job that was deleted in the coordinator is removed immediately. If the rest
// exceeds max_bytes, the attempts with the oldest last write are removed, except running attempts and the
// newest attempt of a running job. Removed logs and evidence are recorded (removed_files.h).
//
// The unpacked package of an attempt (kPackageDirectory) is removed when the attempt has ended; it does not
// count in max_bytes.
//
// A dedicated thread removes files, so that a slow disk blocks no caller: at startup, every kPruneEvery, and
// after Forget. A directory that cannot be removed is logged and tried again.
//
// Thread-safe. `hosted` is called on that thread and may block.
#pragma once

#include <absl/time/time.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "agent/launch/attempt.h"
#include "base/mutex.h"

namespace fsdpd {

struct JobDirectoriesOptions {
  int64_t keep_jobs = 1000;
  absl::Duration keep_for = absl::InfiniteDuration();  // Since the last write.
  int64_t max_bytes = 0;                               // Disk usage of all jobs; 0: no limit.
};

class JobDirectories {
 public:
  using Hosted = std::function<std::map<std::string, std::set<int>>()>;  // Running attempts by job.

  static constexpr absl::Duration kPruneEvery = absl::Minutes(10);

  JobDirectories(std::string work_dir, JobDirectoriesOptions options, Hosted hosted);
  ~JobDirectories();

  // Removes the directory of the job, as soon as no attempt of it runs here.
  void Forget(const std::string& job_id);
  // The attempt has no rank here any more.
  void EndAttempt(const AttemptId& id);
  // Runs one round, including forgotten jobs; returns the ids of removed jobs. Called by the thread and by
  // tests.
  std::vector<std::string> Prune(std::filesystem::file_time_type now);

 private:
  void Run();
  void RemovePackages(const std::string& job_id);
  bool Remove(const std::string& job_id, const char* why);
  void KeepWithinBytes();

  const std::string work_dir_;
  const JobDirectoriesOptions options_;
  const Hosted hosted_;
  Mutex mutex_;
  CondVar changed_;
  std::set<std::string> forgotten_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> left_ ABSL_GUARDED_BY(mutex_);  // Forgotten jobs of earlier rounds, to try again.
  bool package_ended_ ABSL_GUARDED_BY(mutex_) = false;  // An attempt with a package has ended.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdpd
