// Compute time per rank, accumulated until it is sent to the coordinator: one message per attempt every few
// seconds, so that thousands of agents cost the coordinator little. The coordinator decides which ranks are
// slow (coordinator/attempt/compute_scores.h).
//
// Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <map>
#include <optional>

#include "agent/launch/attempt.h"
#include "proto/fsdpd/v1/compute_times.pb.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

constexpr absl::Duration kComputeTimesEvery = absl::Seconds(5);

class ComputeTimes {
 public:
  // Adds `report`, and returns the accumulated message if one is due. The first one is due kComputeTimesEvery
  // after the first report of an attempt.
  std::optional<v1::ComputeTimes> Take(const RankId& id, const v1::StepReport& report, absl::Time now);
  void Forget(const AttemptId& attempt);

 private:
  struct Unsent {
    absl::Time sent;
    std::map<int, v1::ComputeTimes::Rank> ranks;
  };
  std::map<AttemptId, Unsent> attempts_;
};

}  // namespace fsdpd
