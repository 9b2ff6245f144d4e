#include "coordinator/access/watched_file.h"

#include <absl/strings/str_cat.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/log.h"

namespace fsdpd {
namespace {

constexpr int64_t kMaxBytes = 4 << 20;
// File timestamps come from a clock with coarse ticks: a file may change again without a change of its
// timestamp.
constexpr absl::Duration kSettled = absl::Seconds(2);

}  // namespace

bool WatchedFile::Stamp::operator==(const Stamp& other) const {
  return device == other.device && inode == other.inode && bytes == other.bytes &&
         modified_ns == other.modified_ns && changed_ns == other.changed_ns;
}

absl::StatusOr<WatchedFile::Stamp> WatchedFile::Poll() const {
  struct stat stat = {};
  if (::stat(path_.c_str(), &stat) != 0) return ErrnoStatus(path_);
  if (S_ISDIR(stat.st_mode)) return ErrnoStatus(path_, EISDIR);
  if (!S_ISREG(stat.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path_, ": not a regular file"));
  if ((stat.st_mode & S_IWOTH) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": writable by every user of this machine; run chmod o-w"));
  }
  if (stat.st_size > kMaxBytes)
    return absl::InvalidArgumentError(absl::StrCat(path_, ": too large (want at most 4 MiB)"));
  const auto nanos = [](const timespec& time) { return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec; };
  return Stamp{static_cast<int64_t>(stat.st_dev), static_cast<int64_t>(stat.st_ino), stat.st_size,
               nanos(stat.st_mtim), nanos(stat.st_ctim)};
}

absl::Status WatchedFile::Reread() {
  MutexLock lock(&mutex_);
  return RereadLocked();
}

bool WatchedFile::Refresh() {
  MutexLock lock(&mutex_);
  const std::string error(RereadLocked().message());
  if (error == last_error_) return error.empty();
  last_error_ = error;
  if (error.empty()) {
    LogInfo("reloaded %s path=%s", holds_, path_);
  } else {
    LogError("rejected %s; the previous ones stay in use error=%s", holds_, error);
  }
  return error.empty();
}

// Reads the stamp first: a later write has another stamp and is read again.
absl::Status WatchedFile::RereadLocked() {
  const std::optional<Stamp> taken = std::exchange(stamp_, std::nullopt);
  FSDPD_ASSIGN_OR_RETURN(const Stamp stamp, Poll());
  if (taken == stamp) {
    stamp_ = taken;
    return absl::OkStatus();
  }
  errno = 0;
  std::ifstream file(path_);
  if (!file.is_open()) return ErrnoStatus(path_, errno == 0 ? EACCES : errno);
  std::stringstream text;
  if (file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (file.bad()) return absl::UnavailableError(absl::StrCat(path_, ": cannot be read"));
  if (const absl::Status took = take_(text.str()); !took.ok())
    return absl::Status(took.code(), absl::StrCat(path_, ": ", took.message()));
  const bool settled = clock_->Wall() - absl::FromUnixNanos(stamp.changed_ns) > kSettled;
  if (settled) stamp_ = stamp;
  return absl::OkStatus();
}

}  // namespace fsdpd
