#include "client/spec_array.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <algorithm>

namespace fsdpd {
namespace {

std::vector<std::string> SplitValues(const std::string& text) {
  std::vector<std::string> values(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth == 0) {
      values.emplace_back();
      continue;
    }
    values.back() += c;
  }
  return values;
}

}  // namespace

bool IsOfArray(const std::string& request_id, const std::string& array) {
  if (array.empty()) return true;
  const std::string start = absl::StrCat(array, kArrayMark);
  // A person's own request id may have the mark too.
  return absl::StartsWith(request_id, start) && request_id.size() > start.size() &&
         std::all_of(request_id.begin() + static_cast<int64_t>(start.size()), request_id.end(),
                     absl::ascii_isdigit);
}

absl::StatusOr<std::vector<std::vector<std::string>>> ArrayOverrides(const std::vector<std::string>& arrays) {
  std::vector<std::vector<std::string>> jobs(1);
  for (const std::string& array : arrays) {
    const size_t equals = array.find('=');
    if (equals == std::string::npos || equals == 0)
      return absl::InvalidArgumentError(absl::StrCat("'", array, "' is not PATH=VALUE,VALUE"));
    const std::string path = array.substr(0, equals);
    const std::vector<std::string> values = SplitValues(array.substr(equals + 1));
    if (std::find(values.begin(), values.end(), "") != values.end())
      return absl::InvalidArgumentError(absl::StrCat("'", array, "' has a value that is empty"));
    if (jobs.size() * values.size() > kMaxArrayJobs)
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxArrayJobs, " jobs"));
    std::vector<std::vector<std::string>> longer;
    for (const std::vector<std::string>& job : jobs) {
      for (const std::string& value : values) {
        longer.push_back(job);
        longer.back().push_back(absl::StrCat(path, "=", value));
      }
    }
    jobs = std::move(longer);
  }
  return jobs;
}

}  // namespace fsdpd
