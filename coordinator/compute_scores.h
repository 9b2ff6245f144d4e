// Which ranks of an attempt compute longer than others that have the same to do: those of their pipeline
// stage. Ranks wait for each other, so a slow one shows in nothing else of a step. Nothing is asked of ranks
// for it: their agents say what ranks report anyway (agent/compute_times.h).
//
// A score is a rank's compute time of a step over the median of the others: one that is twice as slow has 2,
// in a job of two ranks as in one of a thousand. Words of before count half after three (kKept), so that a
// score is that of the last half minute.
//
// Pure; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/fsdpd/v1/pace.pb.h"

namespace fsdpd {

constexpr size_t kMaxSlowRanks = 3;  // In the job's record; metrics of ranks have them all.

class ComputeScores {
 public:
  // Of one rank, from its agent; false for what cannot be: a rank outside the world, a number that is none.
  bool Take(const v1::ComputeTimes::Rank& told, int world);
  // Whether anything was taken since this was asked last.
  bool TakeNews();

  // The slowest first, without nodes; none that is faster than the others, and none until half of the ranks
  // are known: those of one node would be compared with themselves. `stages`: of the job's pipeline, its
  // outermost axis; 1 without one.
  std::vector<v1::SlowRank> Slowest(int64_t stages) const;

 private:
  struct Sum {
    double steps = 0;  // 0: not known.
    double seconds = 0;
  };
  std::vector<Sum> ranks_;  // By number; empty before the first word.
  bool news_ = false;
};

}  // namespace fsdpd
