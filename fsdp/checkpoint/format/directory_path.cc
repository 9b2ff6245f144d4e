#include "fsdp/checkpoint/format/directory_path.h"

#include <absl/strings/strip.h>

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

}  // namespace fsdpd
