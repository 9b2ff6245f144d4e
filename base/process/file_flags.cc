#include "base/process/file_flags.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <string.h>

#include <cerrno>

#include "base/process/error_line.h"

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
  if (flag != nullptr) {
    // System errors have other codes (errno_status.h).
    const char* const id = absl::IsInvalidArgument(error) ? "INVALID_FILE" : "FILE_ERROR";
    return WithErrorId(absl::StrCat(flag->name, " ", error.message()), id);
  }
  // Without an id of its own, an error has that of its code. Only the state store reports DATA_LOSS.
  return WithErrorId(error.message(),
                     absl::IsDataLoss(error) ? "STATE_CORRUPT" : absl::StatusCodeToString(error.code()));
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
