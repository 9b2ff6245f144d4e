#include "coordinator/attempt/attempt_failure.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "coordinator/attempt/failure_policy.h"
#include "coordinator/attempt/hang.h"
#include "coordinator/attempt/launch_waits.h"

namespace fsdpd {
namespace {

// Failures this close to each other have one cause.
constexpr absl::Duration kSameEvent = absl::Seconds(2);
constexpr absl::Duration kNoProgressLimit = absl::Milliseconds(kNoProgressExpiryMs);
// The others wait for a stopped rank within a step; report it once they have waited as long.
constexpr absl::Duration kOthersStop = absl::Seconds(10);

// A coordinator ordered the stop, and may have lost the record of it: neither agent nor node is the cause.
bool WasOrdered(const v1::RankExit& exit) {
  return exit.cancelled() && !exit.drained() && !exit.peer_failed();
}

// Whether the error itself names the place or the cause. NCCL's errors name neither.
bool NamesCause(const v1::RankExit& exit) {
  const v1::ErrorClass::Kind fault = exit.error_class().kind();
  const bool known = fault != v1::ErrorClass::KIND_UNSPECIFIED && fault != v1::ErrorClass::KIND_MEMORY;
  if (known || exit.has_bad_step()) return true;
  const std::string step = exit.position().substr(0, exit.position().find(':') + 1);
  return absl::StrContains(exit.error(), step);
}

std::string ErrorOf(const v1::RankExit& exit) {
  if (WasOrdered(exit)) return "stopped by its agent on a coordinator's request";
  if (exit.cancelled()) return "stopped by its agent, which was asked to stop";
  // For a rank that could not report an error, the flight recorder names its position.
  const std::string stood = exit.position().empty() ? "" : absl::StrCat("; it was in ", exit.position());
  // The rank itself reports only that it was asked to leave.
  if (Terminated(exit)) return absl::StrCat("SIGTERM from outside, not from its agent", stood);
  if (!exit.error().empty()) return absl::StrCat(exit.error(), NamesCause(exit) ? "" : stood);
  if (exit.signal() != 0) {
    const char* name = sigabbrev_np(exit.signal());
    return absl::StrCat("killed by signal ", exit.signal(),
                        name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"), stood);
  }
  return absl::StrCat("exited with code ", exit.exit_code(), stood);
}

// The coordinator's facts about the attempt are outdated, and the ranks of the newer attempt are healthy.
v1::Job::Failure FailureOfOldState(const AttemptFacts& facts) {
  v1::Job::Failure failure = FailureWithoutRank(
      facts, facts.newer_on,
      absl::StrCat("node ", facts.newer_on, " hosts attempt ", facts.newer_attempt,
                   " of the job: the coordinator's state is older, as after a restore from a backup"));
  failure.set_newer_attempt(facts.newer_attempt);
  Classify(&failure);
  return failure;
}

// Blames the node only if no other was lost: several lost nodes point to the network or the coordinator.
v1::Job::Failure FailureOfNode(const AttemptFacts& facts, const NodePart& part, const PresenceOf& presence,
                               const std::string& error) {
  v1::Job::Failure failure = FailureWithoutRank(facts, part.node, error);
  const bool alone = std::all_of(facts.parts.begin(), facts.parts.end(), [&](const NodePart& each) {
    return each.node == part.node || presence(each.node) == Presence::kConnected;
  });
  failure.set_node_at_fault(alone && !part.revoked && (part.hosted || !facts.recovered));
  return failure;
}

std::string NodeLostReason(const AttemptFacts& facts, const NodePart& part) {
  const std::string node = absl::StrCat("node ", part.node);
  if (part.revoked) return absl::StrCat(node, kIsLost, ": its agent's certificate is revoked");
  if (facts.recovered && !part.attached)
    return absl::StrCat(node, " did not reconnect after the coordinator's restart");
  return absl::StrCat(node, kIsLost, ": its agent was not heard from for ",
                      absl::ToDoubleSeconds(AgentLease::kLostAfter), " s");
}

// A failure of a node that still has unfinished ranks.
std::optional<v1::Job::Failure> NodeFailure(const AttemptFacts& facts, const PresenceOf& presence,
                                            absl::Time now, const VerdictOptions& options) {
  for (const NodePart& part : facts.parts) {
    if (!HasUnfinishedRank(facts, part)) continue;
    if (presence(part.node) == Presence::kLost)
      return FailureOfNode(facts, part, presence, NodeLostReason(facts, part));
    if (presence(part.node) == Presence::kConnected && facts.launches.Expired(part.node, now)) {
      return FailureOfNode(
          facts, part, presence,
          absl::StrCat("the agent of node ", part.node, " has not acknowledged the launch for ",
                       absl::FormatDuration(kLaunchAnsweredWithin)));
    }
    if (part.stopped || now - part.missing_since >= options.missing_settle) {
      return FailureOfNode(
          facts, part, presence,
          absl::StrCat("the agent of node ", part.node,
                       " no longer has its ranks (it restarted, or the launch never reached it)"));
    }
  }
  return std::nullopt;
}

// Returns the first exit of a rank that its own agent stopped without an order: the agent is ending. Returns
// null if that stop is a consequence of the `first` failure: if that failure was long before, cannot be
// caused by a peer's end, or was earlier on the same node, whose exits are reported in order.
const v1::RankExit* FindAgentStop(const AttemptFacts& facts, const v1::RankExit& first) {
  if (first.cancelled()) return &first;
  const auto order = [](const RankFacts& rank) { return std::make_pair(rank.ended, rank.order); };
  const RankFacts* stopped = nullptr;
  for (const RankFacts& rank : facts.ranks()) {
    if (!rank.exit.has_value() || !Failed(*rank.exit) || !rank.exit->cancelled()) continue;
    if (rank.exit->peer_failed()) continue;  // It was leaving because of a peer.
    if (stopped == nullptr || order(rank) < order(*stopped)) stopped = &rank;
  }
  if (stopped == nullptr) return nullptr;
  const RankFacts& failed = facts.ranks()[first.rank()];
  if (stopped->ended - failed.ended > kSameEvent) return nullptr;
  const bool one_node = facts.PartOfRank(first.rank()) == facts.PartOfRank(stopped->exit->rank());
  const bool by_itself = one_node || (WasKilledExternally(first) && !Terminated(first));
  return by_itself && order(failed) < order(*stopped) ? nullptr : &*stopped->exit;
}

bool IsSilent(Presence p) { return p == Presence::kDisconnected || p == Presence::kExpected; }

// Whether a node with unfinished ranks may still report, or turn out to be, the cause.
bool CauseMayArrive(const AttemptFacts& facts, const PresenceOf& presence, absl::Time now,
                    const VerdictOptions& options) {
  return std::any_of(facts.parts.begin(), facts.parts.end(), [&](const NodePart& part) {
    const auto just = [&](absl::Time since) { return since <= now && now - since < options.missing_settle; };
    return HasUnfinishedRank(facts, part) &&
           (IsSilent(presence(part.node)) || just(part.missing_since) || just(part.back_since));
  });
}

bool IsStalled(const RankFacts& rank, absl::Time now) {
  return !rank.exit.has_value() && rank.stall.has_value() && now - rank.no_progress_at < kNoProgressLimit;
}

// Long enough that the other ranks would have been reported too.
bool IsStoppedForLong(const RankFacts& rank, absl::Time now) {
  return IsStalled(rank, now) && rank.stall->process() == v1::PROCESS_STATE_STOPPED &&
         rank.stall->no_progress_ms() >= rank.stall->limit_ms() + absl::ToInt64Milliseconds(kOthersStop);
}

}  // namespace

bool WasOrdered(const v1::Job::Failure& failure) { return failure.drained() && !failure.stopped_by_agent(); }

v1::Job::Failure FailureOf(const AttemptFacts& facts, const v1::RankExit& exit) {
  v1::Job::Failure failure;
  failure.set_rank(exit.rank());
  failure.set_node(facts.PartOfRank(exit.rank())->node);
  failure.set_error(ErrorOf(exit));
  *failure.mutable_log_tail() = exit.log_tail();
  failure.set_exit_code(exit.exit_code());
  failure.set_signal(exit.signal());
  failure.set_attempt(facts.ref.attempt);
  failure.set_refused(exit.agent_stopping() || exit.newer_attempt() > 0);
  failure.set_newer_attempt(exit.newer_attempt());
  if (exit.has_bad_step()) *failure.mutable_bad_step() = exit.bad_step();
  failure.set_stopped_by_agent(exit.cancelled() && !WasOrdered(exit));
  failure.set_drained(exit.drained() || WasOrdered(exit));
  if (exit.has_error_class()) *failure.mutable_error_class() = exit.error_class();
  Classify(&failure);
  return failure;
}

v1::Job::Failure FailureWithoutRank(const AttemptFacts& facts, const std::string& node,
                                    const std::string& error) {
  v1::Job::Failure failure;
  failure.set_rank(-1);
  failure.set_node(node);
  failure.set_error(error);
  failure.set_attempt(facts.ref.attempt);
  Classify(&failure);
  return failure;
}

std::string ReasonOf(const v1::Job::Failure& failure) {
  if (failure.has_hang())
    return failure.rank() < 0
               ? absl::StrCat("the job hangs: ", failure.error())
               : absl::StrCat("rank ", failure.rank(), " on ", failure.node(), " hangs: ", failure.error());
  if (failure.rank() < 0) return failure.error();
  if (WasOrdered(failure))
    return absl::StrCat("rank ", failure.rank(), " on ", failure.node(), " ended: ", failure.error());
  if (failure.drained())
    return absl::StrCat("node ", failure.node(), " is leaving: rank ", failure.rank(),
                        " ended: ", failure.error());
  // The error already describes the agent's action.
  const char* by_what = failure.stopped_by_agent() ? "" : CauseText(failure.cause());
  return absl::StrCat("rank ", failure.rank(), " on ", failure.node(), " failed", by_what, ": ",
                      failure.error());
}

bool HasUnfinishedRank(const AttemptFacts& facts, const NodePart& part) {
  for (int rank = part.first_rank; rank < part.first_rank + part.ranks; ++rank) {
    if (!facts.ranks()[rank].exit.has_value()) return true;
  }
  return false;
}

const v1::RankExit* FindBadStep(const AttemptFacts& facts) {
  for (const RankFacts& rank : facts.ranks()) {
    if (rank.exit.has_value() && Failed(*rank.exit) && rank.exit->has_bad_step()) return &*rank.exit;
  }
  return nullptr;
}

std::optional<v1::Job::Failure> FailureIn(const AttemptFacts& facts, const PresenceOf& presence,
                                          absl::Time now, const VerdictOptions& options) {
  if (facts.newer_attempt > 0) return FailureOfOldState(facts);
  const v1::RankExit* first = facts.FirstFailure();
  if (first != nullptr) {
    // Within the settling time the cause may still arrive, whatever else is wrong.
    const bool of_another = IsConsequence(*first) && !WasKilledExternally(*first);
    const absl::Duration settle = of_another ? options.cause_settle : options.settle;
    if (!facts.AllExited() && now - facts.first_failure_seen() < settle) return std::nullopt;
    if (const v1::RankExit* bad = FindBadStep(facts)) return FailureOf(facts, *bad);
    // Peers of an agent that ends, or of a node that dies, see a broken connection before the node is missed:
    // their failures are consequences.
    if (const v1::RankExit* stopped = FindAgentStop(facts, *first)) return FailureOf(facts, *stopped);
    if (CauseMayArrive(facts, presence, now, options)) return std::nullopt;
    const std::optional<v1::Job::Failure> of_node = NodeFailure(facts, presence, now, options);
    return of_node.has_value() ? of_node : FailureOf(facts, *first);
  }
  if (!facts.fault.empty()) return FailureWithoutRank(facts, "", facts.fault);
  return NodeFailure(facts, presence, now, options);
}

std::optional<v1::Job::Failure> HangIn(const AttemptFacts& facts, int64_t stages, const PresenceOf& presence,
                                       absl::Time now) {
  bool all = true, any = false, stopped = false;
  for (const RankFacts& rank : facts.ranks()) {
    const bool still = IsStalled(rank, now);
    any |= still;
    all &= still || rank.exit.has_value();
    stopped |= IsStoppedForLong(rank, now);
  }
  if (!any || !(all || stopped)) return std::nullopt;
  for (const NodePart& part : facts.parts) {
    if (presence(part.node) != Presence::kConnected) return std::nullopt;
  }
  std::vector<StalledRank> ranks;
  for (size_t rank = 0; rank < facts.ranks().size(); ++rank) {
    const RankFacts& each = facts.ranks()[rank];
    const bool ended = each.exit.has_value();
    if (ended || IsStalled(each, now))
      ranks.push_back({static_cast<int>(rank), ended, ended ? v1::RankNoProgress() : *each.stall,
                       static_cast<int>(rank * stages / facts.ranks().size())});
  }
  const HangCause cause = FindHang(ranks);
  v1::Job::Failure failure =
      FailureWithoutRank(facts, cause.rank < 0 ? "" : facts.PartOfRank(cause.rank)->node, cause.text);
  failure.set_rank(cause.rank);
  *failure.mutable_hang() = cause.hang;
  Classify(&failure);
  return failure;
}

}  // namespace fsdpd
