#include "fsdp/checkpoint/format/part_directory.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/text.h"
#include "fsdp/checkpoint/format/directory_path.h"
#include "fsdp/checkpoint/format/durable_file.h"

namespace fsdpd {
namespace {

constexpr absl::string_view kSuffix = ".part";
constexpr absl::string_view kReplaced = ".replaced";
// Suffixes of files that a conversion writes; a directory with anything else is not ours.
constexpr absl::string_view kOurs[] = {".distcp",
                                       ".part",
                                       ".metadata",
                                       ".metadata.tmp",
                                       ".fsdpd_sums",
                                       ".json",
                                       ".json.tmp",
                                       "common.pt",
                                       "common.pt.tmp",
                                       ".safetensors",
                                       ".fsdpd_sums.tmp",
                                       ".fsdpd_conversion",
                                       ".fsdpd_conversion.tmp"};

std::string ParentOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

bool IsOurs(const std::filesystem::directory_entry& entry) {
  std::error_code error;
  if (entry.symlink_status(error).type() != std::filesystem::file_type::regular) return false;
  return std::any_of(std::begin(kOurs), std::end(kOurs), [&](absl::string_view end) {
    return absl::EndsWith(entry.path().filename().string(), end);
  });
}

// Removes nothing if there is a file that no conversion writes.
absl::Status Clear(const std::string& directory, const std::set<std::string>& kept) {
  std::vector<std::string> files;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (!IsOurs(*entry)) {
      return absl::FailedPreconditionError(
          absl::StrCat(entry->path().string(), ": was not left by an interrupted conversion; move it away"));
    }
    if (kept.count(entry->path().filename().string()) == 0) files.push_back(entry->path().string());
  }
  if (error) return ErrnoStatus(absl::StrCat("list ", directory), error.value());
  for (const std::string& file : files) {
    if (unlink(file.c_str()) != 0) return ErrnoStatus(absl::StrCat("remove ", file));
  }
  return absl::OkStatus();
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return ErrnoStatus(absl::StrCat("rename ", from, " to ", to));
}

// Whether `path` is still the open directory: it was not renamed between opening and locking.
bool IsAt(int fd, const std::string& path) {
  struct stat here, there;
  return fstat(fd, &here) == 0 && stat(path.c_str(), &there) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

absl::Status CheckTargetIsFree(const std::string& target) {
  if (rmdir(target.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  const bool below_a_file = errno == ENOTDIR && access(target.c_str(), F_OK) != 0;
  if (below_a_file) return ErrnoStatus(absl::StrCat("make ", target), ENOTDIR);
  // EINVAL: the path ends in a dot, i.e. the current directory.
  if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR || errno == EINVAL) {
    return absl::AlreadyExistsError(
        absl::StrCat(target, ": already exists; use another directory, or remove it"));
  }
  const int why = errno;
  return ErrnoStatus(absl::StrCat(access(target.c_str(), F_OK) == 0 ? "replace " : "make ", target), why);
}

std::string ReplacedBy(const std::string& target) { return absl::StrCat(target, kReplaced); }

// If two renames replace one exchange, a crash between them leaves the old directory under the temporary
// name.
absl::Status BringBack(const std::string& target) {
  if (access(target.c_str(), F_OK) == 0) return absl::OkStatus();
  const absl::Status renamed = Rename(ReplacedBy(target), target);
  return absl::IsNotFound(renamed) ? absl::OkStatus() : renamed;
}

// Removes a directory with the mark: either the old one after the exchange, or a new one before it, including
// files that other programs put into it.
absl::Status EmptyMarked(const std::string& part, const std::string& mark) {
  if (access(absl::StrCat(part, "/", mark).c_str(), F_OK) != 0) return absl::OkStatus();
  std::error_code error;
  std::filesystem::directory_iterator entry(part, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    // Removes the mark last: if interrupted, the next call continues.
    if (entry->path().filename() != mark) std::filesystem::remove_all(entry->path(), error);
    if (error) break;
  }
  if (!error) std::filesystem::remove(part + "/" + mark, error);
  return error ? ErrnoStatus(absl::StrCat("empty ", part), error.value()) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PartDirectory>> PartDirectory::Create(const std::string& target,
                                                                     const std::string& mark, int attempt) {
  const std::string whole = WithoutSlash(target);
  const std::string part = absl::StrCat(whole, attempt > 0 ? absl::StrCat(".", attempt) : "", kSuffix);
  const bool replaces = !mark.empty();
  if (!replaces) FSDPD_RETURN_IF_ERROR(CheckTargetIsFree(whole));
  if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) return ErrnoStatus(absl::StrCat("create ", part));
  UniqueFd fd(open(part.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(absl::StrCat("open ", part));
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || !IsAt(fd.get(), part))
    return absl::FailedPreconditionError(absl::StrCat(part, ": another conversion is writing to it"));
  if (replaces) FSDPD_RETURN_IF_ERROR(BringBack(whole));
  if (replaces) FSDPD_RETURN_IF_ERROR(EmptyMarked(part, mark));
  return std::unique_ptr<PartDirectory>(new PartDirectory(whole, part, std::move(fd), replaces));
}

PartDirectory::~PartDirectory() {
  // If files are kept, the directory is not empty, and rmdir fails as intended.
  if (!committed_ && (!cleared_ || Clear(part_, kept_).ok())) rmdir(part_.c_str());
}

absl::Status PartDirectory::KeepOnly(std::set<std::string> names) {
  FSDPD_RETURN_IF_ERROR(Clear(part_, names));
  kept_ = std::move(names);
  cleared_ = true;
  return absl::OkStatus();
}

absl::Status PartDirectory::Commit() {
  FSDPD_RETURN_IF_ERROR(SyncDirectory(part_));
  if (replaces_) return Replace();
  FSDPD_RETURN_IF_ERROR(Rename(part_, target_));
  committed_ = true;
  return SyncDirectory(ParentOf(target_));
}

// Readers see either directory, complete. The old one is removed when a crash can no longer restore it.
absl::Status PartDirectory::Replace() {
  std::string old = ReplacedBy(target_);
  std::error_code error;
  std::filesystem::remove_all(old, error);
  if (renameat2(AT_FDCWD, part_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) {
    committed_ = true;
    // Under a descriptive name, in case it remains.
    if (rename(part_.c_str(), old.c_str()) != 0) old = part_;
  } else if (errno == ENOENT) {
    FSDPD_RETURN_IF_ERROR(Rename(part_, target_));
    committed_ = true;
  } else {
    // The file system has no exchange: for a moment there is neither.
    FSDPD_RETURN_IF_ERROR(Rename(target_, old));
    if (const absl::Status failed = Rename(part_, target_); !failed.ok()) {
      rename(old.c_str(), target_.c_str());
      return failed;
    }
    committed_ = true;
  }
  FSDPD_RETURN_IF_ERROR(SyncDirectory(ParentOf(target_)));
  std::filesystem::remove_all(old, error);
  return absl::OkStatus();
}

absl::Status CheckFreeSpace(const std::string& target, int64_t bytes) {
  const std::string parent = ParentOf(WithoutSlash(target));
  struct statvfs disk;
  if (statvfs(parent.c_str(), &disk) != 0) return ErrnoStatus(absl::StrCat("statvfs ", parent));
  const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  if (bytes <= free) return absl::OkStatus();
  return ErrnoStatus(
      absl::StrCat(parent, ": needs ", HumanBytes(bytes), ", but only ", HumanBytes(free), " is free"),
      ENOSPC);
}

}  // namespace fsdpd
