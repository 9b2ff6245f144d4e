// Interface of the receiver of events of the ranks of this node. Called in order on the thread of the
// supervisor (rank_supervisor.h); implementations must not block.
#pragma once

#include <cstdint>
#include <string>

#include "agent/launch/attempt.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {

class RankEvents {
 public:
  virtual ~RankEvents() = default;
  // `planned`: the memory plan of the job. The rank computes its own plan from the spec; it is the same
  // unless versions differ.
  virtual void RankLaunched(const RankId& id, const v1::RankLaunch& launch,
                            const v1::MemoryPlan& planned) = 0;
  // The launch whose first rank here is `first` was carried out, now or before.
  virtual void LaunchAcknowledged(const RankId& first) = 0;
  virtual void RankReady(const RankId& id, const v1::RankStarted& started) = 0;
  virtual void RankStepped(const RankId& id, int world, const v1::StepReport& report) = 0;
  // Committed or failed.
  virtual void CheckpointSaved(const RankId& id, const v1::SavedCheckpoint& saved) = 0;
  virtual void RankTimeline(const RankId& id, const v1::StepTimeline& timeline) = 0;  // Rank 0 only.
  virtual void RankTraced(const RankId& id, const v1::StepTraceResult& traced) = 0;   // Succeeded or failed.
  virtual void RankMeasured(const RankId& id, const v1::PreflightDevice& device) = 0;
  virtual void RankBlockedIn(const RankId& id, const std::string& where) = 0;
  virtual void RankStalled(const RankId& id, const v1::RankNoProgress& no_progress) = 0;
  virtual void RankExited(const RankId& id, const v1::RankExit& exit) = 0;
  // The attempt is stopped because it hangs, and the rank to blame is here; rank 0 if no rank is to blame.
  virtual void AttemptHung(const AttemptId& id) = 0;
  virtual void AttemptGone(const AttemptId& id, bool stopped, const v1::FreedMemory& memory) = 0;
  // Only for attempts that span nodes.
  virtual void StoreSet(const AttemptId& id, const v1::StoreSet& set) = 0;
  virtual void StoreGet(const AttemptId& id, const std::string& key, int64_t request) = 0;
};

}  // namespace fsdpd
