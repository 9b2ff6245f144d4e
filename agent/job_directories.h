// Directories that jobs have left in an agent's work dir (WORK_DIR/JOB, log_keeper.h), with their logs,
// steps, traces and evidence of hangs: how many stay, and for how long. The oldest go first, by what was
// written there last; a job of which something runs here keeps its own whatever its age. One that the
// coordinator was told to delete is removed immediately. If the rest takes more than max_bytes, the attempts
// written to least recently are removed, but no attempt that runs and not the newest one of a running job.
// Their logs and evidence stay recorded (removed_files.h).
//
// A thread of its own removes, so that a slow disk keeps nobody waiting: at its start, every kPruneEvery, and
// when it is told to. What cannot be removed is a warning, and is tried again. Other files of the work dir,
// and what is no directory of a job's, stay.
//
// Thread safety: all methods. `hosted` is called on that thread and may wait.
#pragma once

#include <absl/time/time.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace fsdpd {

struct JobDirectoriesOptions {
  int64_t keep_jobs = 1000;
  absl::Duration keep_for = absl::InfiniteDuration();  // Since something was written there last.
  int64_t max_bytes = 0;                               // On the disk, of all jobs; 0: no bound.
};

class JobDirectories {
 public:
  using Hosted = std::function<std::map<std::string, std::set<int>>()>;  // Attempts that run here, by job.

  static constexpr absl::Duration kPruneEvery = absl::Minutes(10);

  JobDirectories(std::string work_dir, JobDirectoriesOptions options, Hosted hosted);
  ~JobDirectories();

  void Forget(const std::string& job_id);
  // One round, with what it was told to forget; the ids of what was removed. For the thread, and for tests.
  std::vector<std::string> Prune(std::filesystem::file_time_type now);

 private:
  void Run();
  bool Remove(const std::string& job_id, const char* why);
  void KeepWithinBytes();

  const std::string work_dir_;
  const JobDirectoriesOptions options_;
  const Hosted hosted_;
  Mutex mutex_;
  CondVar changed_;
  std::set<std::string> forgotten_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> left_ ABSL_GUARDED_BY(mutex_);  // Of those before, for the next round.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdpd
