// What the coordinator was told about one attempt: which ranks are ready, which have exited and how, which
// nodes have nothing left of it. Facts only; what follows from them is the verdict's to say (verdict.h), so
// that a repeated or late message changes nothing and a failed write is simply judged again on the next tick.
//
// Used by the reconciler's thread alone; not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/attempt_ref.h"
#include "coordinator/compute_scores.h"
#include "coordinator/launch_waits.h"
#include "coordinator/step_pace.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

struct RankFacts {
  bool ready = false;
  std::optional<v1::RankExit> exit;
  // By the coordinator's clock (Clock::Now()), as far as that can be known: clocks of nodes differ, and a
  // date may be set, so nothing is ordered by them.
  absl::Time ended;
  int order = 0;  // Of its exit among those that arrived.
  // Its agent's newest word that nothing of it moves, while that lasts, and when it came.
  std::optional<v1::RankStill> still;
  absl::Time still_heard = absl::InfinitePast();
};

// The share of an attempt that lies on one node.
struct NodePart {
  std::string node;
  int first_rank = 0;
  int ranks = 0;
  std::vector<int> devices;
  std::string agent_instance;  // Of the agent's process that was to have the launch; empty: not known.
  bool launched = false;       // Launch was handed to a stream, or the agent said that it hosts the ranks.
  bool attached = false;       // The agent has registered in this life of the coordinator.
  bool hosted = false;         // And had ranks of it then.
  // Only its agent reports it: its devices are not known, so it takes all slots of the node.
  bool leftover = false;
  bool stopped = false;  // No process is left there.
  bool revoked = false;  // Its agent's last stream was refused or ended: its certificate is revoked.
  // Until when the job's next launch waits for its end. Its slots are taken until then and after.
  absl::Time awaited_until = absl::InfiniteFuture();
  v1::FreedMemory memory;  // What its agent said of it then.
  // Since when the agent is back without some ranks whose end nobody reported.
  absl::Time missing_since = absl::InfiniteFuture();
  // Since when it is back with ranks whose end nobody reported: one that has ended counts as hosted until
  // that is told, which comes next.
  absl::Time back_since = absl::InfiniteFuture();
  absl::Time last_ended = absl::InfinitePast();  // Of its ranks; an agent tells their ends in order.
};

// Bounds a log line that an agent causes as often as it reports something.
class PacedLine {
 public:
  // If the line may be logged now: how many were omitted since the last one.
  std::optional<int64_t> Take(absl::Time now);

 private:
  absl::Time logged_ = absl::InfinitePast();
  int64_t omitted_ = 0;
};

struct StopOrder {
  int64_t grace_ms = 0;
  std::string reason;
  bool save = false;  // v1::Stop's.
  absl::Time sent = absl::InfinitePast();
};

class AttemptFacts {
 public:
  AttemptFacts() = default;
  // Of a job's placements. `recovered`: launched in an earlier life of the coordinator.
  AttemptFacts(const v1::Job& job, bool recovered);

  // Each returns false for what does not belong to the attempt: a rank of another node, an unknown node.
  bool TakeReady(const std::string& node, int rank);
  // `age`: for how long the exit has been known, by its agent and on its way.
  bool TakeExit(const std::string& node, int rank, const v1::RankExit& exit, absl::Time now,
                absl::Duration age);
  bool TakeStopped(const std::string& node, const v1::FreedMemory& memory = {});
  bool TakeStill(const std::string& node, int rank, const v1::RankStill& still, absl::Time now);
  // Whether the launch of the agent's part never came to it: the coordinator died before it had sent what was
  // stored, or the stream broke. Only the very process that was to have it can say so: of what another one
  // has had, with whatever became of its disk, nobody knows. True: its part is to be launched, as where there
  // was no stream to send it to. REQUIRES: before TakeAttached(), of an agent that hosts nothing of it.
  bool TakeNeverCame(const v1::Register& info);
  // The agent of `node` registered and hosts these ranks of the attempt.
  bool TakeAttached(const std::string& node, const std::set<int>& hosted, absl::Time now);

  // Whether the agent acknowledged neither the launch nor the stop in time. Its ranks may still start, so its
  // slots stay taken, but the job does not wait for it.
  bool GaveUpOn(const NodePart& part, absl::Time now) const;

  // The coordinator stood still: what it waited for may have come meanwhile, so that each wait begins again.
  void WaitAgain(absl::Time now);

  NodePart* PartOf(const std::string& node);
  const NodePart* PartOfRank(int rank) const;

  bool AllReady() const;
  bool AllExited() const;
  bool AllSucceeded() const;  // Every rank exited with code 0.
  bool AnySign() const;       // Any rank was ever ready, hosted or ended, as far as is known.
  // The failed exit that came first (RankFacts::ended); those of ranks that were told to stop, or that a peer
  // had failed, count only when there is no other. A rank that was ended from outside comes before what
  // failed by itself within kLeavingTime before it: it takes its leave while its peers lose it already. Null
  // when no rank failed.
  const v1::RankExit* FirstFailure() const;
  absl::Time LastEnd() const;  // InfiniteFuture while a rank's end, or no rank, is known.

  const std::vector<RankFacts>& ranks() const { return ranks_; }
  absl::Time first_failure_seen() const { return first_failure_seen_; }

  AttemptRef ref;
  std::vector<NodePart> parts;
  LaunchWaits launches;
  bool recovered = false;
  bool stepped = false;                 // Rank 0 has reported a step: every rank is through rendezvous.
  bool stepped_since_attached = false;  // After the last registration of one of its agents.
  StepPace pace;
  ComputeScores compute;
  PacedLine saves_line, failed_saves_line, skips_line;
  bool exported = false;            // What checkpoint.export made was reported; an attempt exports once.
  bool refused_checkpoint = false;  // A report of an impossible checkpoint was logged.
  absl::Time scored = absl::InfinitePast();  // When its job was shown them last.
  // The newest that an agent hosts of the job, where that is newer than this one.
  int newer_attempt = 0;
  std::string newer_on;           // Its node.
  std::string fault;              // What went wrong that is no rank's exit; empty when nothing did.
  std::optional<StopOrder> stop;  // Set once the attempt is to end.
  absl::Time stop_since = absl::InfiniteFuture();
  std::string
      why_unsaved;  // Why its ranks were told to leave without a save after all; empty when they were not.

 private:
  RankFacts* RankOn(const std::string& node, int rank);

  std::vector<RankFacts> ranks_;
  absl::Time first_failure_seen_ = absl::InfiniteFuture();  // When the first failed exit was taken.
  int exits_ = 0;
  bool any_sign_ = false;
};

bool Failed(const v1::RankExit& exit);
// It left because a peer had failed or was gone: not the cause.
bool IsConsequence(const v1::RankExit& exit);

// A rank follows SIGTERM within half a second; and exits of two nodes are placed as exactly as their messages
// travel.
constexpr absl::Duration kLeavingTime = absl::Seconds(1);

// By a signal that its agent did not send and that is no process's own fault: somebody, or a kernel short of
// memory, sent it, which no failure of a peer brings about. A SIGSEGV or SIGABRT may well be a consequence.
bool EndedFromOutside(const v1::RankExit& exit);
// By SIGTERM, which a rank follows with an exit code of its own.
bool Terminated(const v1::RankExit& exit);

}  // namespace fsdpd
