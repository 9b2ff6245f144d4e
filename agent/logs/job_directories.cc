#include "agent/logs/job_directories.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "agent/logs/removed_files.h"
#include "base/log.h"
#include "base/process/text_files.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;

constexpr char kAttemptPrefix[] = "attempt-";
std::string AttemptDirectory(int attempt) { return absl::StrCat(kAttemptPrefix, attempt); }

struct Directory {
  std::string job_id;
  fs::file_time_type written;
};

// Returns the latest write time of the files in `directory`, or `written` if that is later. Skips files that
// are removed meanwhile.
fs::file_time_type NewestIn(const fs::path& directory, fs::file_time_type written, bool* any) {
  for (const fs::directory_entry& file : EntriesIn(directory)) {
    std::error_code gone;
    const fs::file_time_type time = file.last_write_time(gone);
    if (gone) continue;
    written = std::max(written, time);
    *any = true;
  }
  return written;
}

// Sets the id and last write time of a job directory; false for other entries. A directory that contains only
// step records counts too: it would otherwise stay forever if steps were written after its logs were removed.
bool Poll(const fs::directory_entry& entry, Directory* directory) {
  std::error_code error;
  directory->job_id = entry.path().filename().string();
  if (entry.is_symlink(error) || !entry.is_directory(error) || !CheckJobId(directory->job_id).ok())
    return false;
  directory->written = entry.last_write_time(error);
  bool is_job = false;
  for (const fs::directory_entry& part : EntriesIn(entry.path())) {
    const std::string name = part.path().filename().string();
    const bool attempt = absl::StartsWith(name, kAttemptPrefix);
    bool any = false;
    if (attempt || name == "steps") directory->written = NewestIn(part.path(), directory->written, &any);
    is_job = is_job || attempt || any || name == kRemovedFiles;
  }
  return is_job;
}

std::vector<Directory> NewestFirst(const std::string& work_dir) {
  std::vector<Directory> directories;
  for (const fs::directory_entry& entry : EntriesIn(work_dir)) {
    Directory directory;
    if (Poll(entry, &directory)) directories.push_back(std::move(directory));
  }
  std::sort(directories.begin(), directories.end(), [](const Directory& a, const Directory& b) {
    return std::tie(a.written, a.job_id) > std::tie(b.written, b.job_id);
  });
  return directories;
}

// Counts allocated blocks, not file sizes: dropped log data is a hole in its file (log_bound.h).
int64_t BytesOnDisk(const fs::path& path) {
  struct stat facts = {};
  return lstat(path.c_str(), &facts) == 0 ? int64_t{512} * facts.st_blocks : 0;
}

// Files of one attempt: its directory and its segments of step records (step_records.h).
struct AttemptFiles {
  fs::path job;
  int number = 0;
  bool newest = false;  // The newest attempt of its job.
  fs::file_time_type written = fs::file_time_type::min();
  int64_t bytes = 0;
  std::vector<fs::path> paths;
};

void AddPath(const fs::directory_entry& entry, AttemptFiles* files) {
  std::error_code error;
  bool any = false;
  files->paths.push_back(entry.path());
  files->written = std::max(files->written, NewestIn(entry.path(), entry.last_write_time(error), &any));
  files->bytes += BytesOnDisk(entry.path());
  for (const fs::directory_entry& file : EntriesIn(entry.path())) files->bytes += BytesOnDisk(file.path());
}

// Attempts of a job, by number.
std::vector<AttemptFiles> AttemptsOf(const fs::path& job) {
  std::map<int, AttemptFiles> by_number;
  for (const fs::path& directory : {job, job / "steps"}) {
    for (const fs::directory_entry& entry : EntriesIn(directory)) {
      const std::string name = entry.path().filename().string();
      absl::string_view rest = name;
      int number = 0;
      if (!absl::ConsumePrefix(&rest, kAttemptPrefix)) continue;
      if (absl::SimpleAtoi(rest.substr(0, rest.find('.')), &number)) AddPath(entry, &by_number[number]);
    }
  }
  std::vector<AttemptFiles> attempts;
  for (auto& [number, files] : by_number) {
    files.job = job;
    files.number = number;
    attempts.push_back(std::move(files));
  }
  if (!attempts.empty()) attempts.back().newest = true;
  return attempts;
}

}  // namespace

JobDirectories::JobDirectories(std::string work_dir, JobDirectoriesOptions options, Hosted hosted)
    : work_dir_(std::move(work_dir)), options_(options), hosted_(std::move(hosted)) {
  thread_ = std::thread([this] { Run(); });
}

JobDirectories::~JobDirectories() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  thread_.join();
}

void JobDirectories::Forget(const std::string& job_id) {
  if (!CheckJobId(job_id).ok())
    return LogWarning("ignored a request to remove a job with an invalid id job=%s", job_id);
  MutexLock lock(&mutex_);
  forgotten_.insert(job_id);
  changed_.Signal();
}

void JobDirectories::EndAttempt(const AttemptId& id) {
  std::error_code error;
  const fs::path attempt = fs::path(work_dir_) / id.job_id / AttemptDirectory(id.attempt);
  if (!fs::exists(attempt / kPackageDirectory, error)) return;
  MutexLock lock(&mutex_);
  package_ended_ = true;
  changed_.Signal();
}

void JobDirectories::RemovePackages(const std::string& job_id) {
  const auto entries = EntriesIn(fs::path(work_dir_) / job_id);
  // Read after the entries, so that an attempt that was launched in between keeps its package.
  const std::map<std::string, std::set<int>> hosted = hosted_();
  const auto runs_here = hosted.find(job_id);
  const std::set<int> running = runs_here == hosted.end() ? std::set<int>() : runs_here->second;
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    const bool runs = std::any_of(running.begin(), running.end(),
                                  [&](int attempt) { return AttemptDirectory(attempt) == name; });
    if (runs || !absl::StartsWith(name, kAttemptPrefix)) continue;
    std::error_code error;
    fs::remove_all(entry.path() / kPackageDirectory, error);
    if (error)
      LogWarning("failed to remove an unpacked package job=%s directory=%s error=%s", job_id, name,
                 error.message());
  }
}

void JobDirectories::Run() {
  for (;;) {
    Prune(fs::file_time_type::clock::now());
    MutexLock lock(&mutex_);
    if (forgotten_.empty() && !package_ended_ && !stopping_)
      changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(kPruneEvery));
    if (stopping_) return;
  }
}

std::vector<std::string> JobDirectories::Prune(fs::file_time_type now) {
  std::set<std::string> forgotten;
  {
    MutexLock lock(&mutex_);
    forgotten.swap(forgotten_);
    forgotten.merge(left_);
    left_.clear();
    package_ended_ = false;
  }
  const std::vector<Directory> directories = NewestFirst(work_dir_);
  // Read after the directories, so that a job launched in between is not removed.
  const std::map<std::string, std::set<int>> hosted = hosted_();
  std::vector<std::string> removed;
  std::set<std::string> left;
  int64_t kept = 0;
  for (const Directory& directory : directories) {
    RemovePackages(directory.job_id);
    const bool deleted = forgotten.count(directory.job_id) != 0;
    const bool old = options_.keep_for != absl::InfiniteDuration() &&
                     now - directory.written > absl::ToChronoNanoseconds(options_.keep_for);
    const bool expires = deleted || old || kept >= options_.keep_jobs;
    // Read again before each removal: earlier removals may have taken minutes, and the job may have been
    // launched meanwhile.
    if (!expires || hosted.count(directory.job_id) != 0 || hosted_().count(directory.job_id) != 0) {
      ++kept;
      if (deleted) left.insert(directory.job_id);
      continue;
    }
    if (Remove(directory.job_id, deleted ? "deleted" : old ? "expired" : "keep_jobs")) {
      removed.push_back(directory.job_id);
    } else if (deleted) {
      left.insert(directory.job_id);
    }
  }
  if (options_.max_bytes > 0) KeepWithinBytes();
  MutexLock lock(&mutex_);
  left_.merge(left);
  return removed;
}

void JobDirectories::KeepWithinBytes() {
  std::vector<AttemptFiles> attempts;
  int64_t bytes = 0;
  for (const Directory& directory : NewestFirst(work_dir_)) {
    for (AttemptFiles& attempt : AttemptsOf(fs::path(work_dir_) / directory.job_id)) {
      bytes += attempt.bytes;
      attempts.push_back(std::move(attempt));
    }
  }
  std::sort(attempts.begin(), attempts.end(),
            [](const AttemptFiles& a, const AttemptFiles& b) { return a.written < b.written; });
  for (const AttemptFiles& attempt : attempts) {
    if (bytes <= options_.max_bytes) return;
    const std::string job_id = attempt.job.filename().string();
    const std::map<std::string, std::set<int>> hosted = hosted_();
    const auto runs = hosted.find(job_id);
    if (runs != hosted.end() && (attempt.newest || runs->second.count(attempt.number) != 0)) continue;
    std::error_code error, failed;
    std::vector<std::string> rank_files = RankFilesOf(attempt.job, attempt.number);
    const fs::file_time_type written = fs::last_write_time(attempt.job, error);
    for (const fs::path& path : attempt.paths) {
      fs::remove_all(path, error);
      if (error) failed = error;
    }
    // Also after a failure, which may be that of another path: the next attempt finds no file to record.
    rank_files.erase(
        std::remove_if(rank_files.begin(), rank_files.end(),
                       [&](const std::string& file) { return fs::exists(attempt.job / file, error); }),
        rank_files.end());
    RecordRemoval(attempt.job, rank_files);
    if (failed) {
      LogWarning("failed to remove attempt files job=%s attempt=%d error=%s", job_id, attempt.number,
                 failed.message());
      continue;
    }
    // Removes the directories that are empty now; fails for the others.
    for (const fs::path& directory : {attempt.job / "steps", attempt.job}) fs::remove(directory, error);
    // The directory's age decides which jobs are kept. It stays the age that Poll() saw: the newest file was
    // often the log that is gone now.
    fs::last_write_time(attempt.job, std::max(written, attempt.written), error);
    bytes -= attempt.bytes;
    LogInfo("removed attempt files, work directory was over its limit job=%s attempt=%d bytes=%d", job_id,
            attempt.number, attempt.bytes);
  }
  if (bytes > options_.max_bytes)
    LogWarning("work directory is over its limit and has no files to remove bytes=%d max_bytes=%d", bytes,
               options_.max_bytes);
}

bool JobDirectories::Remove(const std::string& job_id, const char* why) {
  std::error_code error;
  fs::remove_all(fs::path(work_dir_) / job_id, error);
  if (error) {
    LogWarning("failed to remove job directory job=%s error=%s", job_id, error.message());
    return false;
  }
  LogInfo("removed job directory job=%s reason=%s", job_id, why);
  return true;
}

}  // namespace fsdpd
