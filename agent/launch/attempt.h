// Identifiers of what an agent hosts: an attempt of a job, and one rank of it. Values; all fields are
// compared.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include <string>
#include <tuple>

namespace fsdpd {

struct AttemptId {
  std::string job_id;
  int attempt = 0;

  friend bool operator==(const AttemptId& a, const AttemptId& b) {
    return a.attempt == b.attempt && a.job_id == b.job_id;
  }
  friend bool operator<(const AttemptId& a, const AttemptId& b) {
    return std::tie(a.job_id, a.attempt) < std::tie(b.job_id, b.attempt);
  }
};

struct RankId {
  AttemptId of;
  int rank = 0;

  friend bool operator==(const RankId& a, const RankId& b) { return a.rank == b.rank && a.of == b.of; }
  friend bool operator<(const RankId& a, const RankId& b) {
    return std::tie(a.of, a.rank) < std::tie(b.of, b.rank);
  }
};

// Job id of preflight attempts, which measure the node (node_preflight.h). The ids of jobs cannot collide
// with it: they end in a random suffix.
constexpr char kPreflightJob[] = "preflight";
inline bool IsPreflight(const AttemptId& id) { return id.job_id == kPreflightJob; }

// In the directory of an attempt: where its ranks unpack a package. Removed when the attempt has ended.
constexpr char kPackageDirectory[] = "package";

std::string ToString(const AttemptId& id);  // "job=tiny-k3x9q2 attempt=1"
std::string ToString(const RankId& id);     // "job=tiny-k3x9q2 attempt=1 rank=0"

// Checks that `job_id` can be a directory name, a metric label and part of an environment variable:
// lower-case letters, digits and '-', starting with a letter, at most 63 characters. INVALID_ARGUMENT with
// the reason.
absl::Status CheckJobId(absl::string_view job_id);

}  // namespace fsdpd
