#include "base/file_flags.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <string.h>

#include <cerrno>

namespace fsdpd {
namespace {

const FileFlag* FlagOf(const std::vector<FileFlag>& flags, const absl::Status& error) {
  for (const FileFlag& flag : flags) {
    if (!flag.path.empty() && absl::StartsWith(error.message(), absl::StrCat(flag.path, ":"))) return &flag;
  }
  return nullptr;
}

}  // namespace

std::string WithFlag(const std::vector<FileFlag>& flags, const absl::Status& error) {
  const FileFlag* flag = FlagOf(flags, error);
  return flag == nullptr ? error.ToString() : absl::StrCat(flag->name, " ", error.message());
}

bool IsWrongPath(const std::vector<FileFlag>& flags, const absl::Status& error) {
  const FileFlag* flag = FlagOf(flags, error);
  if (flag == nullptr) return false;
  for (const int number : {ENOENT, ENOTDIR, EISDIR, EACCES, EPERM, ELOOP, ENAMETOOLONG}) {
    if (error.message() == absl::StrCat(flag->path, ": ", strerror(number))) return true;
  }
  return false;
}

}  // namespace fsdpd
