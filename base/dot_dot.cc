#include "base/dot_dot.h"

#include <absl/strings/str_split.h>

#include <algorithm>
#include <vector>

namespace fsdpd {

bool HasDotDot(absl::string_view path) {
  const std::vector<absl::string_view> names = absl::StrSplit(path, '/');
  return std::find(names.begin(), names.end(), "..") != names.end();
}

}  // namespace fsdpd
