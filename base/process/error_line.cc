#include "base/process/error_line.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>

#include <algorithm>

namespace fsdpd {
namespace {

// Whether the line ends with a word in brackets: "[FILE_ERROR]", "[unknown_field]". "[::1]" is not a word.
bool HasId(absl::string_view line) {
  const size_t open = line.rfind(" [");
  if (open == absl::string_view::npos || line.back() != ']') return false;
  const absl::string_view id = line.substr(open + 2, line.size() - open - 3);
  return !id.empty() && absl::ascii_isalpha(id[0]) &&
         std::all_of(id.begin(), id.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

}  // namespace

std::string WithErrorId(absl::string_view message, absl::string_view id) {
  const absl::string_view line = message.substr(0, message.find('\n'));
  if (HasId(line)) return std::string(message);
  return absl::StrCat(line, " [", id, "]", message.substr(line.size()));
}

}  // namespace fsdpd
