// Identity of one launch of one job: the generation that every message about its ranks carries.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

namespace fsdpd {

constexpr int kMaxAttempt = 1'000'000;  // Higher numbers are invalid.
// How far an attempt that an agent reports may be ahead of the job's record. The record is behind only after
// a restore from a backup: by the attempts between backup and restore.
constexpr int kMaxAttemptsAhead = 64;

struct AttemptRef {
  std::string job;
  int32_t attempt = 0;

  bool operator<(const AttemptRef& other) const {
    return std::tie(job, attempt) < std::tie(other.job, other.attempt);
  }
  bool operator==(const AttemptRef& other) const { return job == other.job && attempt == other.attempt; }
};

}  // namespace fsdpd
