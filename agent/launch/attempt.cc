#include "agent/launch/attempt.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>

namespace fsdpd {
namespace {

constexpr size_t kMaxJobId = 63;  // Limit of a DNS label.

}  // namespace

std::string ToString(const AttemptId& id) { return absl::StrCat("job=", id.job_id, " attempt=", id.attempt); }

std::string ToString(const RankId& id) { return absl::StrCat(ToString(id.of), " rank=", id.rank); }

absl::Status CheckJobId(absl::string_view job_id) {
  if (job_id.empty()) return absl::InvalidArgumentError("job_id is empty");
  if (job_id.size() > kMaxJobId) {
    return absl::InvalidArgumentError(
        absl::StrCat("job_id has ", job_id.size(), " characters; at most ", kMaxJobId, " are allowed"));
  }
  for (const char c : job_id) {
    if (absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-') continue;
    return absl::InvalidArgumentError("job_id may hold only lower-case letters, digits and '-'");
  }
  if (!absl::ascii_islower(job_id.front())) {
    return absl::InvalidArgumentError("job_id must start with a letter");
  }
  return absl::OkStatus();
}

}  // namespace fsdpd
