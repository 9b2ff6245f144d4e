// Messages and exits of the ranks of this node, as events. It owns what each message means, which exit is the
// cause of a failure, and the rendezvous of ranks. The supervisor owns their processes (rank_supervisor.h).
//
// When a rank fails, the other ranks of its attempt on this node get PeerFailed immediately, because they may
// wait for it forever, and exit on their own. Their exits have RankExit.peer_failed, so that the first
// failure remains the cause. A rank that exits because it lost a peer (kPeerFailedExitCode) is not the cause:
// that is the next rank that fails differently, here or on another node.
//
// Ranks of an attempt that is entirely on this node use a local rendezvous (local_rendezvous.h); for others,
// requests go to the coordinator and back (StoreSet, StoreGet, StoreValue).
//
// Not thread-safe; the supervisor's thread owns it.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>

#include "agent/ranks/internal_errors.h"
#include "agent/ranks/launch_refusal.h"
#include "agent/ranks/rank_events.h"
#include "agent/ranks/rank_logs.h"
#include "agent/ranks/rendezvous_relay.h"
#include "agent/ranks/running_attempt.h"
#include "base/clock.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {

class RankReports {
 public:
  RankReports(const InternalErrors& errors, const RunningAttempts* attempts, RankLogs* logs,
              RankEvents* events, Clock* clock);

  // Handles the messages that have arrived. `to_the_end`: those of a rank that has ended.
  void Read(RunningAttempt* attempt, HostedRank* rank, bool to_the_end);
  // `draining`: the agent is stopping.
  void ReportExit(RunningAttempt* attempt, HostedRank* rank, v1::RankExit exit, bool draining);
  // `newest`: the newest known attempt of the job; 0: none.
  void ReportRefusal(const v1::Launch& launch, const LaunchRefusal& refusal, int newest, bool draining);
  void ReportHang(const RunningAttempt& attempt, const v1::Stop::Hang& hang);
  void ReportPositions(const v1::Locate& locate);
  void NotifyPeerFailed(const RunningAttempt& attempt, HostedRank* rank);
  void AnswerGet(int64_t number, const std::string& value);
  void Forget(const RankId& rank) { relay_.Forget(rank); }  // It has left.

 private:
  void HandleMessage(RunningAttempt* attempt, HostedRank* rank, const v1::RankToAgent& message);
  absl::Status TakeSet(RunningAttempt* attempt, const HostedRank& rank, const v1::StoreSet& set);
  absl::Status TakeGet(RunningAttempt* attempt, const HostedRank& rank, const v1::StoreGet& get);

  const InternalErrors& errors_;
  const RunningAttempts* const attempts_;
  RankLogs* const logs_;
  RankEvents* const events_;
  Clock* const clock_;
  RendezvousRelay relay_;
};

}  // namespace fsdpd
