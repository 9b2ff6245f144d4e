#include "client/spec/spec_array.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

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

// The path in proto field names: microBatch becomes micro_batch.
std::string CanonicalPath(const std::string& path) {
  std::string canonical;
  for (const char c : path) {
    if (absl::ascii_isupper(c)) canonical += '_';
    canonical += absl::ascii_tolower(c);
  }
  return canonical;
}

// Whether the paths are equal or one contains the other. The later override would replace the earlier one.
bool Overlap(const std::string& one, const std::string& other) {
  const std::string& shorter = one.size() < other.size() ? one : other;
  const std::string& longer = one.size() < other.size() ? other : one;
  if (!absl::StartsWith(longer, shorter)) return false;
  return longer.size() == shorter.size() || longer[shorter.size()] == '.' || longer[shorter.size()] == '[';
}

bool SameValue(const std::string& one, const std::string& other) {
  if (absl::StripAsciiWhitespace(one) == absl::StripAsciiWhitespace(other)) return true;
  double number = 0, other_number = 0;
  return absl::SimpleAtod(one, &number) && absl::SimpleAtod(other, &other_number) && number == other_number;
}

// Rejects duplicate values, which would submit the same job twice.
absl::Status CheckValues(const std::string& array, const std::vector<std::string>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].empty())
      return absl::InvalidArgumentError(absl::StrCat("'", array, "' has an empty value"));
    for (size_t j = 0; j < i; ++j) {
      if (!SameValue(values[i], values[j])) continue;
      const bool alike = values[i] == values[j];
      return absl::InvalidArgumentError(absl::StrCat(
          "'", array, "' has ",
          alike ? "the duplicate value " + values[i] : "the equal values " + values[j] + " and " + values[i],
          "; each value makes a job"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPaths(const std::vector<std::string>& paths) {
  for (size_t i = 0; i < paths.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const std::string one = CanonicalPath(paths[j]), other = CanonicalPath(paths[i]);
      if (one == other)
        return absl::InvalidArgumentError(
            absl::StrCat(paths[j], " is given twice; list all of its values in one --array"));
      if (Overlap(one, other))
        return absl::InvalidArgumentError(
            absl::StrCat(paths[j], " and ", paths[i], " overlap: one contains the other"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool IsInArray(const std::string& request_id, const std::string& array) {
  if (array.empty()) return true;
  const std::string start = absl::StrCat(array, kArraySeparator);
  // A request id of the user may contain the separator too, so the rest must be a number.
  return absl::StartsWith(request_id, start) && request_id.size() > start.size() &&
         std::all_of(request_id.begin() + static_cast<int64_t>(start.size()), request_id.end(),
                     absl::ascii_isdigit);
}

absl::StatusOr<std::vector<std::vector<std::string>>> ArrayOverrides(const std::vector<std::string>& arrays) {
  std::vector<std::string> paths;
  std::vector<std::vector<std::string>> values;
  size_t count = 1;
  for (const std::string& array : arrays) {
    const size_t equals = array.find('=');
    if (equals == std::string::npos || equals == 0)
      return absl::InvalidArgumentError(absl::StrCat("'", array, "' is not PATH=VALUE,VALUE"));
    paths.push_back(array.substr(0, equals));
    values.push_back(SplitValues(array.substr(equals + 1)));
    FSDPD_RETURN_IF_ERROR(CheckValues(array, values.back()));
    count *= values.back().size();
    if (count > kMaxArrayJobs)
      return absl::InvalidArgumentError(absl::StrCat("'", array, "': too many jobs (got ", count,
                                                     ", at most ", kMaxArrayJobs,
                                                     "); submit several arrays"));
  }
  FSDPD_RETURN_IF_ERROR(CheckPaths(paths));
  std::vector<std::vector<std::string>> jobs(1);
  for (size_t i = 0; i < paths.size(); ++i) {
    std::vector<std::vector<std::string>> longer;
    for (const std::vector<std::string>& job : jobs) {
      for (const std::string& value : values[i]) {
        longer.push_back(job);
        longer.back().push_back(absl::StrCat(paths[i], "=", value));
      }
    }
    jobs = std::move(longer);
  }
  return jobs;
}

}  // namespace fsdpd
