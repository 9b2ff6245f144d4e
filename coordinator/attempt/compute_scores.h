// Detection of slow ranks in an attempt: ranks that compute longer than the ranks of the same pipeline stage,
// which have the same work. Ranks wait for each other, so a slow rank does not show in step times. Agents
// forward compute times that ranks report anyway (agent/metrics/compute_times.h).
//
// Score = compute time per step / median of the other ranks: 2 for a rank that is twice as slow. A report has
// half its weight after three newer ones (kRetained): a score covers about the last half minute.
//
// Pure; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/fsdpd/v1/compute_times.pb.h"

namespace fsdpd {

constexpr size_t kMaxSlowRanks = 3;  // In the job's record; rank metrics have all ranks.

class ComputeScores {
 public:
  // Adds one rank's report; false if it is invalid: a rank outside the world size, a number out of range.
  bool Take(const v1::ComputeTimes::Rank& report, int world);
  // Whether anything was added since the last call.
  bool TakeChanged();

  // The slowest ranks first, without nodes. Contains no rank that is faster than the others, and is empty
  // until half of the ranks are known: otherwise ranks of one node would only be compared with each other.
  // `stages`: pipeline-parallel degree; the pipeline is the outermost axis.
  std::vector<v1::SlowRank> Slowest(int64_t stages) const;

 private:
  struct Sum {
    double steps = 0;  // 0: unknown.
    double seconds = 0;
  };
  std::vector<Sum> ranks_;  // By rank; empty before the first report.
  bool changed_ = false;
};

}  // namespace fsdpd
