// Reported facts about one attempt, from which the verdict (verdict.h) draws conclusions. A repeated or late
// message changes nothing, and after a failed write the next tick repeats the decision.
//
// Not thread-safe: used only by the reconciler's thread.
#pragma once

#include <absl/time/time.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/attempt/compute_scores.h"
#include "coordinator/attempt/launch_waits.h"
#include "coordinator/job/attempt_ref.h"
#include "coordinator/job/step_pace.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

struct RankFacts {
  bool ready = false;
  std::optional<v1::RankExit> exit;
  // End of the rank by the coordinator's clock (Clock::Now()), as well as that is known. Clocks of nodes
  // differ and a date may be set, so they order nothing.
  absl::Time ended;
  int order = 0;  // Position of its exit in order of arrival.
  // The agent's newest report that the rank makes no progress, while that lasts, and its arrival time.
  std::optional<v1::RankNoProgress> stall;
  absl::Time no_progress_at = absl::InfinitePast();
};

// The part of an attempt on one node.
struct NodePart {
  std::string node;
  int first_rank = 0;
  int ranks = 0;
  std::vector<int> devices;
  std::string agent_instance;  // Agent process that the launch was sent to; empty if unknown.
  bool launched = false;       // Launch was handed to a stream, or the agent reported the ranks.
  bool attached = false;       // The agent registered since the coordinator's start.
  bool hosted = false;         // It reported ranks of the attempt when it registered.
  // Only the agent reports this attempt: its devices are unknown, so it occupies all slots of the node.
  bool leftover = false;
  bool stopped = false;  // No process is left on the node.
  bool revoked = false;  // The agent's last stream was rejected or ended because its certificate is revoked.
  // Until when the job's next launch waits for the end of this part. Its slots stay occupied afterwards.
  absl::Time awaited_until = absl::InfiniteFuture();
  v1::FreedMemory memory;  // Reported by the agent with Stopped.
  // Since when the agent is back without some ranks whose end was not reported.
  absl::Time missing_since = absl::InfiniteFuture();
  // Since when the agent is back with ranks whose end was not reported.
  absl::Time back_since = absl::InfiniteFuture();
  absl::Time last_ended = absl::InfinitePast();  // Newest end of its ranks; an agent reports ends in order.
};

// Rate limit for a log line that an agent can cause with every report.
class PacedLine {
 public:
  // If the line may be logged now: the number of omitted lines since the last one.
  std::optional<int64_t> Take(absl::Time now);

 private:
  absl::Time logged_ = absl::InfinitePast();
  int64_t omitted_ = 0;
};

struct StopOrder {
  int64_t grace_ms = 0;
  std::string reason;
  bool save = false;  // As in v1::Stop.
  absl::Time sent = absl::InfinitePast();
};

class AttemptFacts {
 public:
  AttemptFacts() = default;
  // From the placements of `job`. `recovered`: launched before the coordinator's last start.
  AttemptFacts(const v1::Job& job, bool recovered);

  // Each returns false for a report that does not belong to the attempt: a rank of another node, an unknown
  // node.
  bool TakeReady(const std::string& node, int rank);
  // `age`: how long the exit was known to its agent and in transit.
  bool TakeExit(const std::string& node, int rank, const v1::RankExit& exit, absl::Time now,
                absl::Duration age);
  bool TakeStopped(const std::string& node, const v1::FreedMemory& memory = {});
  bool TakeNoProgress(const std::string& node, int rank, const v1::RankNoProgress& no_progress,
                      absl::Time now);
  // Whether the launch of the agent's part was not delivered, so that the part must be launched. Only the
  // agent process that the launch was sent to can prove this. REQUIRES: called before TakeAttached(), for an
  // agent that hosts no rank of the attempt.
  bool TakeUndeliveredLaunch(const v1::Register& info);
  // The agent of `node` registered and hosts these ranks of the attempt.
  bool TakeAttached(const std::string& node, const std::set<int>& hosted, absl::Time now);

  // Whether the agent acknowledged neither the launch nor the stop in time. Its ranks may still start, so its
  // slots stay occupied, but the job does not wait for it.
  bool GaveUpOn(const NodePart& part, absl::Time now) const;

  // Restarts all waits after the coordinator was suspended: awaited messages may have arrived meanwhile.
  void RestartWaits(absl::Time now);

  NodePart* PartOf(const std::string& node);
  const NodePart* PartOfRank(int rank) const;

  bool AllReady() const;
  bool AllExited() const;
  bool AllSucceeded() const;  // All ranks exited with code 0.
  bool HasAnySign() const;    // Any rank was ever known to be ready, hosted or ended.
  // The first failed exit by RankFacts::ended; null if no rank failed. Exits of ranks that were ordered to
  // stop, or that failed because of a peer, count only if no other rank failed. A rank that was killed from
  // outside precedes ranks that failed up to kExitTime before it, because its peers lose it immediately.
  const v1::RankExit* FirstFailure() const;
  absl::Time LastEnd() const;  // InfiniteFuture while the end of a rank is unknown, or there are no ranks.

  const std::vector<RankFacts>& ranks() const { return ranks_; }
  absl::Time first_failure_seen() const { return first_failure_seen_; }

  AttemptRef ref;
  std::vector<NodePart> parts;
  LaunchWaits launches;
  bool recovered = false;
  bool stepped = false;                 // Rank 0 reported a step, so all ranks completed rendezvous.
  bool stepped_since_attached = false;  // After the newest registration of one of its agents.
  StepPace pace;
  ComputeScores compute;
  PacedLine saves_line, failed_saves_line, skips_line;
  bool exported = false;            // The result of checkpoint.export was reported; an attempt exports once.
  bool refused_checkpoint = false;  // A report of an impossible checkpoint was logged.
  absl::Time scored = absl::InfinitePast();  // When the job's slow ranks were last updated.
  // The newest attempt of the job that an agent hosts, if it is newer than this one.
  int newer_attempt = 0;
  std::string newer_on;           // The node that hosts it.
  std::string fault;              // An error that is not the exit of a rank; empty if none.
  std::optional<StopOrder> stop;  // Set when the attempt must end.
  absl::Time stop_since = absl::InfiniteFuture();
  std::string why_unsaved;  // Why its ranks were ordered to exit without a save; empty if they were not.

 private:
  RankFacts* RankOn(const std::string& node, int rank);

  std::vector<RankFacts> ranks_;
  absl::Time first_failure_seen_ = absl::InfiniteFuture();  // Arrival of the first failed exit.
  int exits_ = 0;
  bool any_sign_ = false;
};

bool Failed(const v1::RankExit& exit);
// It exited because a peer failed or disappeared: not the cause.
bool IsConsequence(const v1::RankExit& exit);

// A rank exits within half a second after SIGTERM, and exits of two nodes are only ordered as precisely as
// their messages arrive.
constexpr absl::Duration kExitTime = absl::Seconds(1);

// Ended by a signal that its agent did not send and that no process causes itself: a user or the kernel's OOM
// killer sent it, which the failure of a peer does not bring about. SIGSEGV or SIGABRT may be consequences.
bool WasKilledExternally(const v1::RankExit& exit);
// By SIGTERM, after which a rank exits with a code of its own.
bool Terminated(const v1::RankExit& exit);

}  // namespace fsdpd
