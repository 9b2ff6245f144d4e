#include "fsdp/checkpoint/part_folder.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/text.h"
#include "fsdp/checkpoint/durable_file.h"

namespace fsdpd {
namespace {

constexpr absl::string_view kSuffix = ".part";
constexpr absl::string_view kReplaced = ".replaced";
// How what a conversion writes ends: anything else in a folder of that name is somebody's.
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

std::string WithoutSlash(const std::string& path) {
  std::string cut = path;
  while (cut.size() > 1 && cut.back() == '/') cut.pop_back();
  return cut;
}

std::string ParentOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

bool IsOurs(const std::filesystem::directory_entry& entry) {
  std::error_code error;
  if (entry.symlink_status(error).type() != std::filesystem::file_type::regular) return false;
  const std::string name = entry.path().filename().string();
  for (const absl::string_view end : kOurs) {
    if (absl::EndsWith(name, end)) return true;
  }
  return false;
}

// Removes nothing where something is no conversion's.
absl::Status Clear(const std::string& folder, const std::set<std::string>& kept) {
  std::vector<std::string> files;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (!IsOurs(*entry)) {
      return absl::FailedPreconditionError(absl::StrCat(
          entry->path().string(), ": is not of a conversion that was interrupted; move it away"));
    }
    if (kept.count(entry->path().filename().string()) == 0) files.push_back(entry->path().string());
  }
  if (error) return ErrnoStatus(absl::StrCat("list ", folder), error.value());
  for (const std::string& file : files) {
    if (unlink(file.c_str()) != 0) return ErrnoStatus(absl::StrCat("remove ", file));
  }
  return absl::OkStatus();
}

// The folder at `path` is the open one: it was not renamed between opening and locking.
bool IsAt(int fd, const std::string& path) {
  struct stat here, there;
  return fstat(fd, &here) == 0 && stat(path.c_str(), &there) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

absl::Status CheckTargetIsFree(const std::string& target) {
  if (rmdir(target.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR) {
    return absl::AlreadyExistsError(
        absl::StrCat(target, ": is there already; name a folder that is not, or remove it"));
  }
  return ErrnoStatus(absl::StrCat("replace ", target));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PartFolder>> PartFolder::Create(const std::string& target, bool replaces) {
  const std::string whole = WithoutSlash(target), part = absl::StrCat(whole, kSuffix);
  if (!replaces) FSDPD_RETURN_IF_ERROR(CheckTargetIsFree(whole));
  if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) return ErrnoStatus(absl::StrCat("create ", part));
  const int fd = open(part.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(absl::StrCat("open ", part));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 || !IsAt(fd, part)) {
    close(fd);
    return absl::FailedPreconditionError(absl::StrCat(part, ": another conversion is writing there"));
  }
  return std::unique_ptr<PartFolder>(new PartFolder(whole, part, fd, replaces));
}

PartFolder::~PartFolder() {
  // Where something is kept the folder is not empty, and stays.
  if (!committed_ && (!cleared_ || Clear(part_, kept_).ok())) rmdir(part_.c_str());
  close(fd_);
}

absl::Status PartFolder::KeepOnly(std::set<std::string> names) {
  FSDPD_RETURN_IF_ERROR(Clear(part_, names));
  kept_ = std::move(names);
  cleared_ = true;
  return absl::OkStatus();
}

absl::Status PartFolder::Commit() {
  FSDPD_RETURN_IF_ERROR(SyncFolder(part_));
  if (replaces_) return Replace();
  if (rename(part_.c_str(), target_.c_str()) != 0) {
    return ErrnoStatus(absl::StrCat("rename ", part_, " to ", target_));
  }
  committed_ = true;
  return SyncFolder(ParentOf(target_));
}

// A crash between the two renames leaves both under other names, and the next one begins anew.
absl::Status PartFolder::Replace() {
  const std::string old = absl::StrCat(target_, kReplaced);
  std::error_code error;
  std::filesystem::remove_all(old, error);
  if (rename(target_.c_str(), old.c_str()) != 0 && errno != ENOENT)
    return ErrnoStatus(absl::StrCat("rename ", target_, " to ", old));
  if (rename(part_.c_str(), target_.c_str()) != 0) {
    const absl::Status failed = ErrnoStatus(absl::StrCat("rename ", part_, " to ", target_));
    rename(old.c_str(), target_.c_str());
    return failed;
  }
  committed_ = true;
  std::filesystem::remove_all(old, error);
  return SyncFolder(ParentOf(target_));
}

absl::Status CheckFreeSpace(const std::string& target, int64_t bytes) {
  const std::string parent = ParentOf(WithoutSlash(target));
  struct statvfs disk;
  if (statvfs(parent.c_str(), &disk) != 0) return ErrnoStatus(absl::StrCat("look at ", parent));
  const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  if (bytes <= free) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(parent, ": ", HumanBytes(bytes), " are needed, and ", HumanBytes(free), " are free"));
}

}  // namespace fsdpd
