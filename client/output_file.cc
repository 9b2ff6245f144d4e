#include "client/output_file.h"

#include <absl/strings/str_cat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace fsdpd {

absl::Status WriteOutput(const char* flag, const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": ", std::strerror(errno)));
}

}  // namespace fsdpd
