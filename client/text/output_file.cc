#include "client/text/output_file.h"

#include <absl/strings/str_cat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace fsdpd {

absl::Status CheckOutput(const char* flag, const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": is a directory"));
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  if (directory.empty() || std::filesystem::is_directory(directory, error)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " ", path, ": no such directory: ", directory.string()));
}

absl::Status WriteOutput(const char* flag, const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": ", std::strerror(errno)));
}

}  // namespace fsdpd
