#include "coordinator/watched_file.h"

#include <absl/strings/str_cat.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "base/errno_status.h"

namespace fsdpd {
namespace {

constexpr int64_t kMaxBytes = 4 << 20;
// Dates of files come from a clock that ticks: one that was just written may be written again at the same
// date.
constexpr absl::Duration kSettled = absl::Seconds(2);

}  // namespace

bool WatchedFile::Stamp::operator==(const Stamp& other) const {
  return device == other.device && inode == other.inode && bytes == other.bytes &&
         modified_ns == other.modified_ns && changed_ns == other.changed_ns;
}

absl::StatusOr<WatchedFile::Stamp> WatchedFile::Look() const {
  struct stat stat = {};
  if (::stat(path_.c_str(), &stat) != 0) return ErrnoStatus(path_);
  if (S_ISDIR(stat.st_mode)) return ErrnoStatus(path_, EISDIR);
  if (!S_ISREG(stat.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path_, ": is no file"));
  if ((stat.st_mode & S_IWOTH) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": every user of this machine may write it, and so who may do what; chmod o-w it"));
  }
  if (stat.st_size > kMaxBytes)
    return absl::InvalidArgumentError(absl::StrCat(path_, ": has more than 4 MiB"));
  const auto nanos = [](const timespec& time) { return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec; };
  return Stamp{static_cast<int64_t>(stat.st_dev), static_cast<int64_t>(stat.st_ino), stat.st_size,
               nanos(stat.st_mtim), nanos(stat.st_ctim)};
}

// The look comes first: what is written after it is another stamp, and read again.
absl::StatusOr<std::optional<std::string>> WatchedFile::Changed() {
  FSDPD_ASSIGN_OR_RETURN(const Stamp stamp, Look());
  {
    MutexLock lock(&mutex_);
    if (stamp_ == stamp) return std::optional<std::string>();
  }
  errno = 0;
  std::ifstream file(path_);
  if (!file.is_open()) return ErrnoStatus(path_, errno == 0 ? EACCES : errno);
  std::stringstream text;
  if (file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (file.bad()) return absl::UnavailableError(absl::StrCat(path_, ": cannot be read"));
  const bool settled = clock_->Wall() - absl::FromUnixNanos(stamp.changed_ns) > kSettled;
  MutexLock lock(&mutex_);
  stamp_ = settled ? std::make_optional(stamp) : std::nullopt;
  return std::make_optional(text.str());
}

}  // namespace fsdpd
