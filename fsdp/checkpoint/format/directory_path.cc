#include "fsdp/checkpoint/format/directory_path.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <errno.h>

#include <filesystem>
#include <system_error>

#include "base/errno_status.h"

namespace fsdpd {

std::string WithoutSlash(absl::string_view path) {
  while (path.size() > 1 && absl::ConsumeSuffix(&path, "/")) {
  }
  return std::string(path);
}

std::string DirectoryName(absl::string_view path) {
  const std::string whole = WithoutSlash(path);
  return whole.substr(whole.rfind('/') + 1);
}

absl::Status DirectoryError(absl::string_view doing, int error) {
  const std::string text = ErrnoText(doing, error);
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(
          absl::StrCat(text, "; use a directory that exists or can be created on each node"));
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(absl::StrCat(text, "; write the path of a directory"));
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(
          absl::StrCat(text, "; the agent's user needs write permission there on each node"));
    default:
      return ErrnoStatus(doing, error);
  }
}

absl::Status MakeDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? DirectoryError(absl::StrCat("make ", path), error.value()) : absl::OkStatus();
}

}  // namespace fsdpd
