#include "base/dot_dot.h"

#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <vector>

namespace fsdpd {

bool HasDotDot(absl::string_view path) {
  const std::vector<absl::string_view> names = absl::StrSplit(path, '/');
  return std::find(names.begin(), names.end(), "..") != names.end();
}

bool IsBelow(absl::string_view path, absl::string_view dir) {
  return absl::ConsumePrefix(&path, dir) && (path.empty() || path[0] == '/' || dir == "/");
}

}  // namespace fsdpd
