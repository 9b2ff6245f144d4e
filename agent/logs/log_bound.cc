#include "agent/logs/log_bound.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/log.h"
#include "base/rank/log_gap.h"

namespace fsdpd {
namespace {

constexpr auto kLookInterval = std::chrono::milliseconds(200);
constexpr int kParts = 8;  // Each cut frees 1/8 of the limit, so that cuts are rare.
constexpr int64_t kBlockBytes = 256 << 10;
constexpr int64_t kStatBlockBytes = 512;  // Unit of st_blocks.
constexpr int64_t kFarBehind = int64_t{1} << 30;

std::string FrontPath(const std::string& log) { return log + ".front"; }

absl::Status WriteFront(const std::string& log, const LogFront& front) {
  const std::string path = FrontPath(log), half = path + ".part";
  const std::string text = absl::StrCat(front.bytes, " ", front.lines, "\n");
  const UniqueFd fd(open(half.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd.valid() && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      rename(half.c_str(), path.c_str()) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(path);
}

// Start of the last line that begins in [from.bytes, to], and the number of lines before it. `to` itself if
// the last line is longer than one block.
absl::StatusOr<LogFront> FrontAt(int log, LogFront from, int64_t to) {
  std::string block(kBlockBytes, '\0');
  LogFront front = from;
  for (int64_t begin = from.bytes; begin < to;) {
    const ssize_t got =
        pread(log, block.data(), static_cast<size_t>(std::min(kBlockBytes, to - begin)), begin);
    if (got < 0) return ErrnoStatus("read");
    if (got == 0) break;  // The file was truncated meanwhile.
    for (ssize_t i = 0; i < got; ++i) {
      if (block[static_cast<size_t>(i)] != '\n') continue;
      ++front.lines;
      front.bytes = begin + i + 1;
    }
    begin += got;
  }
  if (to - front.bytes > kBlockBytes) front.bytes = to;
  return front;
}

// Whether the log still begins with the hole of [0, bytes). A hole reads as zeros, so a log that begins with
// text was truncated and written again, and a log shorter than its hole was truncated.
bool StartsWithHole(const std::string& log, int64_t bytes) {
  const UniqueFd fd(open(log.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts = {};
  char first = '\n';
  return fd.valid() && fstat(fd.get(), &facts) == 0 && facts.st_size >= bytes &&
         pread(fd.get(), &first, 1, 0) == 1 && first == '\0';
}

UniqueFd OpenLog(const std::string& path) {
  return UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
}

absl::Status PunchHole(const std::string& log, int fd, int64_t begin, int64_t bytes) {
  constexpr int kHole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  return fallocate(fd, kHole, begin, bytes) == 0 ? absl::OkStatus() : ErrnoStatus(log);
}

absl::Status Cut(const std::string& log, int fd, int64_t to) {
  // Punching a hole far beyond the end changes nothing and tests whether the file system supports holes,
  // before WriteFront() announces one.
  FSDPD_RETURN_IF_ERROR(PunchHole(log, fd, lseek(fd, 0, SEEK_END) + kFarBehind, kBlockBytes));
  FSDPD_ASSIGN_OR_RETURN(const LogFront front, FrontAt(fd, FrontOf(log), to));
  FSDPD_RETURN_IF_ERROR(WriteFront(log, front));
  return PunchHole(log, fd, 0, front.bytes);
}

}  // namespace

LogFront FrontOf(const std::string& log) {
  LogFront front;
  char text[64] = {};
  const UniqueFd fd(open(FrontPath(log).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() || pread(fd.get(), text, sizeof text - 1, 0) <= 0) return front;
  const std::vector<absl::string_view> numbers = absl::StrSplit(text, absl::ByAnyChar(" \n"));
  if (numbers.size() < 2 || !absl::SimpleAtoi(numbers[0], &front.bytes) ||
      !absl::SimpleAtoi(numbers[1], &front.lines)) {
    return {};
  }
  return StartsWithHole(log, front.bytes) ? front : LogFront();
}

LogBound::LogBound(int64_t max_bytes, std::function<void(const std::string&)> removed)
    : max_bytes_(max_bytes), removed_(std::move(removed)), thread_([this] { Run(); }) {}

LogBound::~LogBound() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.SignalAll();
  thread_.join();
}

void LogBound::Watch(const std::string& log) {
  auto opened = std::make_shared<Log>();
  opened->fd = OpenLog(log);
  MutexLock lock(&mutex_);
  watched_[log] = {std::move(opened)};
  changed_.SignalAll();
}

void LogBound::Unwatch(const std::string& log) {
  MutexLock lock(&mutex_);
  const auto it = watched_.find(log);
  if (it != watched_.end()) it->second.written = false;
}

std::string LogBound::Notice(int64_t bytes, int64_t lines) const {
  return LogGapNotice(bytes, lines, max_bytes_);
}

void LogBound::Run() {
  while (true) {
    std::map<std::string, Watched> watched;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && watched_.empty()) changed_.Wait(&mutex_);
      if (!stopping_) changed_.WaitFor(&mutex_, kLookInterval);
      if (stopping_) return;
      watched = watched_;
      for (const auto& [path, each] : watched) {
        if (!each.written) watched_.erase(path);
      }
    }
    for (const auto& [path, each] : watched) Poll(path, each);
  }
}

void LogBound::Poll(const std::string& path, const Watched& watched) {
  Log& log = *watched.log;
  if (!log.fd.valid()) log.fd = OpenLog(path);
  struct stat held = {}, there = {};
  if (!log.fd.valid() || fstat(log.fd.get(), &held) != 0) return;
  const bool found = stat(path.c_str(), &there) == 0, gone = !found && errno == ENOENT;
  const bool other = found && (held.st_dev != there.st_dev || held.st_ino != there.st_ino);
  const bool was_removed = std::exchange(log.removed, gone || other);
  // Logs of a rank that has ended may be removed together with their job.
  if (watched.written && removed_ && (gone || (other && !was_removed))) removed_(path);
  Bound(path, log);
}

void LogBound::Bound(const std::string& path, const Log& log) {
  struct stat facts = {};
  if (fstat(log.fd.get(), &facts) != 0 || facts.st_size <= max_bytes_) return;
  const int64_t kept = log.removed ? facts.st_blocks * kStatBlockBytes : facts.st_size - FrontOf(path).bytes;
  if (kept <= max_bytes_) return;
  const int64_t to = facts.st_size - max_bytes_ / kParts * (kParts - 1);
  // The .front file belongs to the file that is now at this path: readers cannot open the unlinked one.
  const absl::Status cut = log.removed ? PunchHole(path, log.fd.get(), 0, to) : Cut(path, log.fd.get(), to);
  if (cut.ok() || std::exchange(failure_logged_, true)) return;
  LogWarning("log limit cannot be enforced, so logs grow max_bytes=%d error=%s", max_bytes_, cut.message());
}

}  // namespace fsdpd
