#include "coordinator/attempt/verdict.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>

#include "base/check.h"
#include "coordinator/attempt/failure_policy.h"
#include "coordinator/attempt/job_pause.h"
#include "coordinator/attempt/launch_waits.h"
#include "coordinator/job/bad_steps.h"
#include "coordinator/job/job_checkpoints.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/nodes/agent_lease.h"

namespace fsdpd {
namespace {

constexpr char kWaitsFor[] = "waits for the agent of ";
constexpr char kSilent[] = "waiting for ";
constexpr char kAllBack[] = "all agents are connected again";
constexpr char kMayBeLocked[] = "waiting to start: ranks of an earlier attempt may still run on ";
constexpr char kDeletedNode[] = "deleted node ";
constexpr char kLocks[] = " and lock checkpoint.dir; rank 0 waits up to 3 minutes for the lock";
// A start that takes longer may be blocked by ranks of an earlier attempt, which hold the directory's lock.
constexpr absl::Duration kPromptStart = absl::Seconds(5);
// An agent kills ranks when their grace is over, and confirms within seconds that nothing is left.
constexpr absl::Duration kConfirmsWithin = absl::Seconds(30);
// A launch that a restart swallowed costs no attempt, unless such launches end the coordinator.
constexpr int kMaxSwallowedLaunches = 3;

// Appends a consequence to a reason. A reason of several lines gets it on a line of its own.
std::string AppendConsequence(const std::string& why, const std::string& what) {
  return absl::StrCat(why, why.find('\n') == std::string::npos ? "; " : "\n", what);
}

// After the coordinator's start, no node is reported as silent before all had time to reconnect.
bool ExpectsNodes(const AttemptFacts& facts, const PresenceOf& presence) {
  return std::any_of(facts.parts.begin(), facts.parts.end(), [&](const NodePart& part) {
    return !part.stopped && presence(part.node) == Presence::kExpected;
  });
}

std::vector<std::string> LostNodes(const AttemptFacts& facts, const PresenceOf& presence,
                                   const EarlierAttempts& earlier = {}) {
  std::vector<std::string> lost;
  for (const NodePart& part : facts.parts) {
    if (!part.stopped && presence(part.node) == Presence::kLost) lost.push_back(part.node);
  }
  for (const std::string& node : earlier.lost) {
    if (std::find(lost.begin(), lost.end(), node) == lost.end()) lost.push_back(node);
  }
  return lost;
}

// Appends what is unknown about lost nodes, unless the reason already names them.
std::string WithLost(const std::string& why, const std::vector<std::string>& lost) {
  if (lost.empty()) return why;
  const std::string named = absl::StrCat("node ", absl::StrJoin(lost, ", "), " is lost");
  return absl::StrCat(why, " (", absl::StrContains(why, named) ? "" : absl::StrCat(named, ": "),
                      "the end of its ranks could not be confirmed)");
}

// Rank 0 locks the checkpoint directory first, and reports nothing while it waits for the lock.
bool MayWaitForLock(const v1::Job& job, const AttemptFacts& facts, absl::Time now,
                    const EarlierAttempts& earlier) {
  return job.state() == v1::JOB_STATE_STARTING && earlier.MayHoldLock() &&
         now - facts.pace.since() >= kPromptStart && !FilledSpec(job).checkpoint().dir().empty();
}

// The event names the node if there is only one.
void NameLockHolders(const EarlierAttempts& earlier, Verdict* verdict) {
  std::vector<std::string> holders;
  if (!earlier.lost.empty()) holders.push_back(absl::StrCat("lost node ", absl::StrJoin(earlier.lost, ", ")));
  if (!earlier.deleted.empty())
    holders.push_back(absl::StrCat(kDeletedNode, absl::StrJoin(earlier.deleted, ", ")));
  verdict->reason = absl::StrCat(kMayBeLocked, absl::StrJoin(holders, ", "), kLocks);
  if (earlier.lost.size() + earlier.deleted.size() > 1) return;
  verdict->node = earlier.lost.empty() ? earlier.deleted.front() : earlier.lost.front();
}

Verdict JudgeWhileUp(const v1::Job& job, const AttemptFacts& facts, const PresenceOf& presence,
                     absl::Time now, const VerdictOptions& options, const EarlierAttempts& earlier) {
  Verdict verdict;
  if (facts.AllSucceeded()) {
    if (!NothingCounted(job)) return {JobEvent::kFinish, "all ranks finished", std::nullopt};
    v1::Job::Failure failure = FailureWithoutRank(facts, "", WhyNothingCounted(job));
    failure.set_cause(v1::FAILURE_CAUSE_BAD_STEP);
    return {JobEvent::kFail, failure.error(), failure};
  }
  verdict.failure = FailureIn(facts, presence, now, options);
  if (!verdict.failure.has_value() && facts.FirstFailure() == nullptr)
    verdict.failure = HangIn(facts, std::max<int64_t>(job.spec().parallel().pipeline(), 1), presence, now);
  if (verdict.failure.has_value()) {
    verdict.event = JobEvent::kFail;
    verdict.reason = AppendConsequence(ReasonOf(*verdict.failure), "stopping the attempt");
    verdict.refused = verdict.failure->refused();
    return verdict;
  }
  if (job.state() == v1::JOB_STATE_STARTING && (facts.AllReady() || facts.stepped)) {
    return {JobEvent::kReady, RunningReason(facts), std::nullopt};
  }
  if (ExpectsNodes(facts, presence)) return verdict;
  std::vector<std::string> disconnected, revoked;
  for (const NodePart& part : facts.parts) {
    if (presence(part.node) != Presence::kDisconnected) continue;
    disconnected.push_back(part.node);
    if (part.revoked) revoked.push_back(part.node);
  }
  const bool waited = absl::StartsWith(job.reason(), kWaitsFor) ||
                      (absl::StartsWith(job.reason(), kMayBeLocked) && !earlier.MayHoldLock());
  const bool was_late = absl::StartsWith(job.reason(), kLaunchNotAcknowledged);
  const LateLaunches late = facts.launches.Late(now);
  const bool continues = job.state() == v1::JOB_STATE_RUNNING && facts.stepped_since_attached;
  if (!disconnected.empty()) {
    verdict.reason = absl::StrCat(
        kWaitsFor, absl::StrJoin(disconnected, ", "), " to reconnect; ",
        revoked.empty() ? absl::StrCat("the attempt ends after ",
                                       absl::ToDoubleSeconds(AgentLease::kLostAfter), " s without heartbeats")
                        : absl::StrCat("the certificate of ", absl::StrJoin(revoked, ", "), " is revoked"));
    if (disconnected.size() == 1) verdict.node = disconnected.front();
  } else if (!late.reason.empty() || was_late) {
    // With thousands of nodes, each acknowledgement would be an event.
    if (was_late && !late.reason.empty() && late.node.empty()) return verdict;
    verdict.reason = late.reason.empty() ? "all launches are acknowledged" : late.reason;
    verdict.node = late.node;
  } else if (waited) {
    verdict.reason = kAllBack;
  } else if (MayWaitForLock(job, facts, now, earlier)) {
    NameLockHolders(earlier, &verdict);
  } else if (continues && job.reason() == kAllBack) {
    verdict.reason = RunningReason(facts);
  }
  if (!verdict.reason.empty() && verdict.reason != job.reason()) verdict.event = JobEvent::kNote;
  return verdict;
}

// Whether a later exit that may belong to an earlier failure replaces the stored failure. Not if a node or an
// ending agent was found to be the cause: later exits are consequences. Not if the coordinator restarted and
// has nothing to compare with, because the agent of the stored failure's rank may be gone.
bool MayBeOverruled(const v1::Job& job, const AttemptFacts& facts) {
  if (!job.has_failure() || job.failure().attempt() != job.attempt()) return true;
  const v1::Job::Failure& found = job.failure();
  if (found.drained() || found.stopped_by_agent() || found.has_bad_step() || found.has_hang()) return false;
  return found.rank() < 0 ? found.node().empty() : facts.ranks()[found.rank()].exit.has_value();
}

Verdict RetryRejected(const v1::Job& job) {
  Verdict verdict;
  verdict.event = JobEvent::kRetry;
  verdict.number_after = job.failure().newer_attempt();
  verdict.drained = !job.failure().refused();  // The attempt ran and may have saved.
  verdict.retry_after = RetryDelay(job);
  const std::string why = job.failure().refused()
                              ? absl::StrCat(job.failure().node(), " rejected it: ", job.failure().error())
                              : job.failure().error();
  verdict.reason = absl::StrCat(
      "attempt ", job.attempt(), " does not count against restart.max_attempts, because ", why,
      "; the next one", verdict.number_after > 0 ? absl::StrCat(", ", verdict.number_after + 1, ",") : "",
      " starts after ", absl::FormatDuration(verdict.retry_after));
  return verdict;
}

// The node shut down gracefully, or a coordinator ordered the stop: not a failure of the job.
Verdict RetryAfterDrain(const v1::Job& job) {
  Verdict verdict;
  verdict.event = JobEvent::kRetry;
  verdict.drained = true;
  verdict.retry_after = RetryDelay(job);
  const std::string& node = job.failure().node();
  const std::string why = WasOrdered(job.failure())
                              ? absl::StrCat("a coordinator ordered the agent of ", node,
                                             " to stop it, for a reason that is not stored")
                              : absl::StrCat("node ", node, " shut down: its agent was asked to stop");
  verdict.reason =
      absl::StrCat("attempt ", job.attempt(), " does not count against restart.max_attempts, because ", why,
                   "; the next one starts after ", absl::FormatDuration(verdict.retry_after), NextStart(job));
  return verdict;
}

// Uses stored data only, so that a restarted coordinator decides alike.
Verdict JudgeBadStep(const v1::Job& job, const std::string& why) {
  Verdict verdict;
  const std::string no_rewind = WhyNoRewind(job);
  if (!no_rewind.empty()) {
    verdict.event = JobEvent::kGiveUp;
    verdict.reason = absl::StrCat(why, "; ", no_rewind);
    return verdict;
  }
  verdict.event = JobEvent::kRetry;
  verdict.rewinds = true;
  const v1::SampleRange range = RangeToSkip(job);
  verdict.reason = absl::StrCat("attempt ", job.attempt(), " rewinds: ", why, "; the next one starts",
                                NextStart(job).empty() ? "" : NextStart(job).substr(1), " and skips samples ",
                                range.first(), " to ", range.end() - 1);
  return verdict;
}

// Counted from the first failed exit, if there is one: stopping the attempt has taken a part of the delay.
absl::Duration RetryDelayLeft(const v1::Job& job, const AttemptFacts& facts, absl::Time now) {
  const absl::Duration since = std::max(now - facts.first_failure_seen(), absl::ZeroDuration());
  return absl::Ceil(std::max(RetryDelay(job) - since, absl::ZeroDuration()), absl::Milliseconds(10));
}

// As IsGone(), but also for agents that do not answer.
bool IsOver(const AttemptFacts& facts, const PresenceOf& presence, absl::Time now) {
  return std::all_of(facts.parts.begin(), facts.parts.end(), [&](const NodePart& part) {
    return part.stopped || presence(part.node) == Presence::kLost || facts.GaveUpOn(part, now);
  });
}

Verdict JudgeStopping(const v1::Job& job, const AttemptFacts& facts, const PresenceOf& presence,
                      absl::Time now) {
  const bool known = job.has_failure() && job.failure().attempt() == job.attempt();
  // Uses stored data only: after a restart of the coordinator the facts are gone.
  if (known && (job.failure().refused() || job.failure().newer_attempt() > 0)) return RetryRejected(job);
  v1::Job updated = job;
  // The rank that detected the bad step may report it after the attempt failed because of other ranks.
  const v1::RankExit* bad = FindBadStep(facts);
  if (bad != nullptr && bad->bad_step().rewind() && !WantsRewind(job))
    *updated.mutable_failure() = FailureOf(facts, *bad);
  if (WantsRewind(updated)) {
    Verdict verdict =
        JudgeBadStep(updated, WithLost(ReasonOf(updated.failure()), LostNodes(facts, presence)));
    verdict.failure = updated.failure();
    return verdict;
  }
  Verdict verdict;
  // An exit that arrived after the stop began may name an earlier failure.
  const v1::RankExit* first = facts.FirstFailure();
  const bool ended_by_step = known && job.failure().has_bad_step();
  if (first != nullptr && !first->cancelled() && MayBeOverruled(job, facts)) {
    verdict.failure = FailureOf(facts, *first);
    verdict.failure->set_refused(false);  // It did not fail the attempt, which counts.
    Classify(&*verdict.failure);
  }
  if (bad != nullptr) verdict.failure = FailureOf(facts, *bad);
  const std::string why =
      WithLost(ReasonOf(verdict.failure.value_or(job.failure())), LostNodes(facts, presence));
  // Another attempt would fail in the same way.
  if (ended_by_step || bad != nullptr || NothingCounted(job)) {
    verdict.event = JobEvent::kGiveUp;
    verdict.reason = why;
    return verdict;
  }
  if (known && job.failure().drained()) return RetryAfterDrain(job);
  v1::Job::Failure failure = verdict.failure.value_or(job.failure());
  const std::string no_retry = WhyNoRetry(job, &failure);
  const int64_t allowed = AttemptsAllowed(job);
  if (!no_retry.empty()) {
    verdict.event = JobEvent::kGiveUp;
    verdict.failure = failure;
    verdict.reason = failure.cause() == v1::FAILURE_CAUSE_NO_PROGRESS
                         ? absl::StrCat("no progress: ", no_retry, "; the last one: ", why)
                         : AppendConsequence(why, no_retry);
  } else if (job.attempt() < allowed) {
    verdict.event = JobEvent::kRetry;
    verdict.retry_after = RetryDelayLeft(job, facts, now);
    const std::string start = verdict.retry_after > absl::ZeroDuration()
                                  ? absl::StrCat("after ", absl::FormatDuration(verdict.retry_after))
                                  : "immediately";
    const std::string after =
        job.has_last_step() ? absl::StrCat(" after step ", job.last_step().step()) : std::string();
    verdict.reason = AppendConsequence(
        absl::StrCat("attempt ", job.attempt(), " of ", allowed, " failed", after, ": ", why),
        absl::StrCat("the next one starts ", start, NextStart(job)));
  } else if (facts.recovered && !facts.HasAnySign() && job.attempt() < allowed + kMaxSwallowedLaunches) {
    // The coordinator ended between the decision and the launch: the job has lost nothing.
    verdict.event = JobEvent::kRetry;
    verdict.reason =
        absl::StrCat("attempt ", job.attempt(), " was never launched: the coordinator restarted");
  } else {
    verdict.event = JobEvent::kGiveUp;
    verdict.reason = WhyGivenUp(job, why);
  }
  return verdict;
}

std::string WhyNotSaved(const AttemptFacts& facts, const PresenceOf& presence) {
  // A node that was lost then may have reconnected.
  const std::string why = facts.why_unsaved.empty() ? WhyNothingIsSaved(facts, presence) : facts.why_unsaved;
  if (!why.empty()) return why;
  for (const RankFacts& rank : facts.ranks()) {
    if (rank.exit.has_value() && !rank.exit->error().empty())
      return absl::StrCat("rank ", rank.exit->rank(), " ended as ", rank.exit->error());
  }
  return "the cause is unknown";
}

// Connected nodes that have not confirmed the end of the attempt.
std::vector<std::string> ConnectedNodes(const AttemptFacts& facts, const PresenceOf& presence) {
  std::vector<std::string> nodes;
  for (const NodePart& part : facts.parts) {
    if (!part.stopped && presence(part.node) == Presence::kConnected) nodes.push_back(part.node);
  }
  return nodes;
}

std::string CancelledReason(const v1::Job& job, const AttemptFacts& facts, const PresenceOf& presence,
                            const EarlierAttempts& earlier) {
  const std::vector<std::string> lost = LostNodes(facts, presence, earlier);
  const std::vector<std::string> unresponsive = ConnectedNodes(facts, presence);
  std::string gone = lost.empty() && unresponsive.empty() ? "cancelled, all ranks are gone"
                                                          : "cancelled, all ranks elsewhere are gone";
  if (!unresponsive.empty())
    absl::StrAppend(&gone, "; the agent of ", absl::StrJoin(unresponsive, ", "),
                    " acknowledged neither the launch nor the stop");
  return absl::StrCat(WithLost(gone, lost), SavedStateText(job));
}

// Connected nodes that should have confirmed by now that nothing of the attempt is left.
std::vector<std::string> UnconfirmedNodes(const AttemptFacts& facts, const PresenceOf& presence,
                                          absl::Time now) {
  const int64_t grace_ms = facts.stop.has_value() ? facts.stop->grace_ms : 0;
  if (now - facts.stop_since < absl::Milliseconds(grace_ms) + kConfirmsWithin) return {};
  return ConnectedNodes(facts, presence);
}

// Adds to the reason of a stopping job the nodes that are silent or do not confirm the stop, except nodes
// that the reason already reports as lost.
Verdict NameSilentNodes(const v1::Job& job, const AttemptFacts& facts, const PresenceOf& presence,
                        absl::Time now) {
  if (ExpectsNodes(facts, presence)) return {};
  std::vector<std::string> silent, lost;
  bool named = true;
  for (const NodePart& part : facts.parts) {
    if (part.stopped || presence(part.node) == Presence::kConnected) continue;
    // Only a pause waits for lost nodes.
    const bool ignored = presence(part.node) == Presence::kLost && job.state() != v1::JOB_STATE_PAUSING;
    (ignored ? lost : silent).push_back(part.node);
    if (ignored) continue;
    named &= absl::StrContains(job.reason(), absl::StrCat("node ", part.node, " is lost"));
  }
  const std::vector<std::string> unconfirmed =
      silent.empty() ? UnconfirmedNodes(facts, presence, now) : std::vector<std::string>();
  Verdict verdict;
  if (silent.size() + unconfirmed.size() == 1) verdict.node = silent.empty() ? unconfirmed[0] : silent[0];
  if (!silent.empty() && !named) {
    verdict.reason = absl::StrCat(kSilent, absl::StrJoin(silent, ", "),
                                  ", not heard from; ranks may still run there", NextStepText(job));
  } else if (!unconfirmed.empty()) {
    verdict.reason =
        absl::StrCat(kSilent, absl::StrJoin(unconfirmed, ", "), ", connected but has not confirmed the stop ",
                     absl::FormatDuration(kConfirmsWithin),
                     " after the grace period; ranks may still run there", NextStepText(job));
  } else if (silent.empty() &&
             (absl::StartsWith(job.reason(), kSilent) || absl::StartsWith(job.reason(), kWaitsForStore))) {
    verdict.reason =
        lost.empty() ? absl::StrCat(kAllBack, "; ranks are leaving") : WithLost("ranks are leaving", lost);
  }
  if (!verdict.reason.empty() && verdict.reason != job.reason()) verdict.event = JobEvent::kNote;
  return verdict;
}

Verdict JudgePausing(const v1::Job& job, const AttemptFacts& facts, const PresenceOf& presence,
                     const EarlierAttempts& earlier, absl::Time now) {
  if (facts.AllSucceeded() && !NothingCounted(job))
    return {JobEvent::kFinish, "all ranks finished before they were paused", std::nullopt};
  const auto& before = job.pause().unconfirmed();
  const bool leaving = !IsGone(facts, presence) || earlier.ending;
  if (leaving && before.empty()) return NameSilentNodes(job, facts, presence, now);
  Verdict verdict;
  const std::vector<std::string> lost = LostNodes(facts, presence, earlier);
  if (leaving) {
    verdict.event = JobEvent::kNote;
    verdict.reason = "lost ranks reconnected and are leaving";
    verdict.unconfirmed.emplace();
    return verdict;
  }
  if (lost.empty() || job.pause().resumes_automatically()) {
    verdict.event = JobEvent::kRanksGone;
    verdict.pause = PauseOf(job, WhyNotSaved(facts, presence), lost);
    AddFreedMemory(facts.parts, &*verdict.pause);
    verdict.reason = PausedReason(job, *verdict.pause);
  } else if (!std::equal(lost.begin(), lost.end(), before.begin(), before.end())) {
    verdict.event = JobEvent::kNote;
    verdict.reason = UnconfirmedText(lost);
    verdict.unconfirmed = lost;
  }
  return verdict;
}

}  // namespace

std::string RunningReason(const AttemptFacts& facts) {
  return facts.ranks().size() == 1 ? "its rank runs"
                                   : absl::StrCat("all ", facts.ranks().size(), " ranks run");
}

std::vector<std::string> DeletedHostsIn(absl::string_view reason) {
  if (!absl::ConsumePrefix(&reason, kMayBeLocked) || !absl::ConsumePrefix(&reason, kDeletedNode)) return {};
  return absl::StrSplit(absl::StripSuffix(reason, kLocks), ", ");
}

bool IsGone(const AttemptFacts& facts, const PresenceOf& presence) {
  return std::all_of(facts.parts.begin(), facts.parts.end(), [&](const NodePart& part) {
    return part.stopped || presence(part.node) == Presence::kLost;
  });
}

std::string WhyNothingIsSaved(const AttemptFacts& facts, const PresenceOf& presence) {
  for (const RankFacts& rank : facts.ranks()) {
    if (!rank.exit.has_value() || !Failed(*rank.exit) || Terminated(*rank.exit)) continue;
    if (rank.exit->cancelled() && !rank.exit->drained() && facts.stop.has_value())
      return absl::StrCat("rank ", rank.exit->rank(), " on ", facts.PartOfRank(rank.exit->rank())->node,
                          " had not exited when its grace ended");
    return ReasonOf(FailureOf(facts, *rank.exit));
  }
  std::string lost;
  bool others_wait = false;
  for (const NodePart& part : facts.parts) {
    if (!HasUnfinishedRank(facts, part)) continue;
    if (presence(part.node) != Presence::kLost) {
      others_wait = true;
    } else if (lost.empty()) {
      lost = absl::StrCat("node ", part.node, kIsLost);
    }
  }
  return others_wait ? lost : "";  // Nodes that are lost together may still save together.
}

Verdict Judge(const v1::Job& job, const AttemptFacts& facts, const PresenceOf& presence, absl::Time now,
              const VerdictOptions& options, const EarlierAttempts& earlier) {
  switch (job.state()) {
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_RUNNING:
      return JudgeWhileUp(job, facts, presence, now, options, earlier);
    case v1::JOB_STATE_STOPPING:
      return IsOver(facts, presence, now) ? JudgeStopping(job, facts, presence, now)
                                          : NameSilentNodes(job, facts, presence, now);
    case v1::JOB_STATE_CANCELLING:
      if (!IsOver(facts, presence, now) || earlier.ending) return NameSilentNodes(job, facts, presence, now);
      return {JobEvent::kRanksGone, CancelledReason(job, facts, presence, earlier), std::nullopt};
    case v1::JOB_STATE_PAUSING:
      return JudgePausing(job, facts, presence, earlier, now);
    default:
      FSDPD_CHECK(false);
  }
  return Verdict();
}

}  // namespace fsdpd
