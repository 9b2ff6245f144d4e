#include "agent/logs/log_loss.h"

#include <absl/strings/str_cat.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "agent/logs/log_lines.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/unique_fd.h"

namespace fsdpd {
namespace {

constexpr auto kLookInterval = std::chrono::seconds(1);
constexpr char kRemovedNotice[] =
    "the log file was removed or replaced while the rank wrote to it; its earlier lines are gone, and its "
    "output is lost until its next attempt";
constexpr size_t kPageBytes = 4096;  // Like the next block of a log.
// Limit of logs that get a notice; more in one loss come from a crash loop.
constexpr size_t kMaxGaps = 4096;

// Writes a page to the disk of the work directory; returns the errno, 0 if it succeeded.
int TryDisk(const std::string& work_dir) {
  const std::string path = work_dir + "/.write-probe";
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  // If this process lacks descriptors or memory, the disk may still accept writes of ranks.
  const bool own_want = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
  if (!fd.valid()) return own_want ? 0 : errno;
  const std::string page(kPageBytes, '\0');
  const ssize_t written = write(fd.get(), page.data(), page.size());
  if (written == static_cast<ssize_t>(page.size())) return unlink(path.c_str()) == 0 ? 0 : errno;
  const int error = written < 0 ? errno : ENOSPC;
  if (ftruncate(fd.get(), 0) != 0)
    LogWarning("failed to truncate the write probe path=%s error=%s", path, strerror(errno));
  return error;
}

}  // namespace

LogLoss::LogLoss(std::string work_dir, std::function<void(absl::Duration)> lost)
    : work_dir_(std::move(work_dir)), lost_(std::move(lost)), thread_([this] {
        while (AwaitNextPoll()) Poll();
      }) {}

LogLoss::~LogLoss() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.SignalAll();
  thread_.join();
}

void LogLoss::Watch(const std::string& log) {
  MutexLock lock(&mutex_);
  watched_.insert(log);
  if (!why_.empty() && gaps_.size() < kMaxGaps) gaps_.insert(log);
  changed_.SignalAll();
}

void LogLoss::Unwatch(const std::string& log) {
  MutexLock lock(&mutex_);
  watched_.erase(log);
  removed_.erase(log);
}

void LogLoss::Removed(const std::string& log) {
  {
    MutexLock lock(&mutex_);
    if (watched_.count(log) == 0) return;
    if (removed_.insert(log).second)
      LogWarning("a rank's log was removed or replaced, its output is lost path=%s", log);
  }
  // The whole directory may have been removed. If the notice cannot be written, the next check tries again.
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(log).parent_path(), ignored);
  AppendNotice(log, kRemovedNotice).IgnoreError();
}

std::string LogLoss::Notice() const {
  MutexLock lock(&mutex_);
  return why_.empty() ? "" : absl::StrCat("[fsdpd-agent: output of the rank is being lost: ", why_, "]");
}

// Waits for the next check; false if it is time to stop. Without ranks the disk is not touched, so that idle
// nodes let it sleep.
bool LogLoss::AwaitNextPoll() {
  MutexLock lock(&mutex_);
  if (!stopping_ && !watched_.empty()) changed_.WaitFor(&mutex_, kLookInterval);
  while (!stopping_ && watched_.empty() && why_.empty()) changed_.Wait(&mutex_);
  if (!stopping_ && watched_.empty()) changed_.WaitFor(&mutex_, kLookInterval);
  return !stopping_;
}

void LogLoss::Poll() {
  const int error = TryDisk(work_dir_);
  const absl::Time now = Clock::Real()->Now();
  const absl::Duration passed = now - std::exchange(last_poll_, now);
  std::string was;
  bool removed = false;
  std::set<std::string> gaps;
  {
    MutexLock lock(&mutex_);
    was = std::exchange(why_, error == 0 ? "" : absl::StrCat(work_dir_, ": ", strerror(error)));
    removed = !removed_.empty();
    if (error != 0 && was.empty()) gaps_ = watched_;
    if (error == 0) gaps.swap(gaps_);
  }
  if ((!was.empty() || removed) && lost_) lost_(passed);
  if (error != 0 && was.empty()) {
    since_ = now;
    LogWarning("started to lose rank logs work_dir=%s error=%s", work_dir_, strerror(error));
  } else if (error == 0 && !was.empty()) {
    const std::string time = absl::FormatDuration(absl::Trunc(now - since_, absl::Seconds(1)));
    LogInfo("rank logs are written again lost_for=%s marked_logs=%d", time, gaps.size());
    for (const std::string& log : gaps) {
      const absl::Status marked =
          AppendNotice(log, absl::StrCat("lines are missing here, ", time, " of output: ", was));
      if (!marked.ok()) LogWarning("failed to mark a gap in a log error=%s", marked.message());
    }
  }
}

}  // namespace fsdpd
