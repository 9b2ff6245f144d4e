// The ranks of one attempt on this node, from the launch until no process and no GPU memory of them is left.
//
// Not thread-safe; the supervisor's thread owns it.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/time/time.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "agent/launch/attempt.h"
#include "agent/ranks/hosted_rank.h"
#include "agent/ranks/internal_errors.h"
#include "agent/ranks/local_rendezvous.h"
#include "base/clock.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

struct RunningAttempt {
  static constexpr absl::Duration kRetryDelay = absl::Seconds(1);
  static constexpr int kAllRanks = -1;  // Rank number of an error that concerns the whole attempt.

  AttemptId id;
  int world = 0;
  v1::MemoryPlan planned;
  std::vector<HostedRank> ranks;
  bool saves = false;                                // The job has checkpoints.
  absl::Time retry_at = absl::InfinitePast();        // After an internal error.
  bool stopping = false;                             // Stop requested by the coordinator or locally.
  std::optional<LocalRendezvous> store;              // Set if all ranks of the attempt are on this node.
  std::optional<int> failed_rank;                    // First rank that failed,
  bool cause_seen = false;                           // or the first that failed without having lost a peer.
  absl::Time terminate_at = absl::InfiniteFuture();  // At most kill_at.
  absl::Time kill_at = absl::InfiniteFuture();

  // Runs `step`; after an exception, the ranks are handled again after kRetryDelay.
  void Guard(const InternalErrors& errors, Clock* clock, int rank, absl::FunctionRef<void()> step) {
    if (!errors.Catch({id, rank}, step).ok()) retry_at = clock->Now() + kRetryDelay;
  }

  void RestartProgressClocks(absl::Time now) {
    for (HostedRank& rank : ranks) {
      if (rank.no_progress.has_value()) rank.no_progress->Restart(now);
    }
  }
};

using RunningAttempts = std::map<AttemptId, std::unique_ptr<RunningAttempt>>;

// Null if the attempt has no ranks here.
inline RunningAttempt* Find(const RunningAttempts& attempts, const AttemptId& id) {
  const auto it = attempts.find(id);
  return it == attempts.end() ? nullptr : it->second.get();
}

}  // namespace fsdpd
