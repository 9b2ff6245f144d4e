// How long the ranks of this agent compute, added up until the coordinator is told: a word for each attempt
// every few seconds and not for each step, so that thousands of agents cost it next to nothing. What slow is,
// it alone can say: it knows the others (coordinator/compute_scores.h).
//
// A word goes out with a report, so that a rank that stands still is not told of; that is no_progress.h's.
//
// Thread safety: none.
#pragma once

#include <absl/time/time.h>

#include <map>
#include <optional>

#include "agent/attempt.h"
#include "proto/fsdpd/v1/pace.pb.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

constexpr absl::Duration kComputeTimesEvery = absl::Seconds(5);

class ComputeTimes {
 public:
  // The word that is due with this report, if one is. The first is due a while after an attempt's first
  // report.
  std::optional<v1::ComputeTimes> Take(const RankId& id, const v1::StepReport& report, absl::Time now);
  void Forget(const AttemptId& attempt);

 private:
  struct Undelivered {
    absl::Time told;
    std::map<int, v1::ComputeTimes::Rank> ranks;
  };
  std::map<AttemptId, Undelivered> attempts_;
};

}  // namespace fsdpd
