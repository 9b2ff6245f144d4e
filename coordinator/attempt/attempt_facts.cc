#include "coordinator/attempt/attempt_facts.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "base/rank/exit_code.h"

namespace fsdpd {
namespace {

// An agent that only lost the launch confirms a stop immediately.
constexpr absl::Duration kStopTimeout = absl::Seconds(10);
constexpr absl::Duration kLinesApart = absl::Seconds(10);
constexpr int kSentSignals[] = {SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU};

}  // namespace

bool Failed(const v1::RankExit& exit) {
  return exit.signal() != 0 || exit.exit_code() != 0 || !exit.error().empty();
}

bool Terminated(const v1::RankExit& exit) {
  return exit.signal() == SIGTERM || (exit.signal() == 0 && exit.exit_code() == kStoppedExitCode);
}

bool IsConsequence(const v1::RankExit& exit) {
  return exit.signal() == 0 && (exit.peer_failed() || exit.exit_code() == kPeerFailedExitCode);
}

bool WasKilledExternally(const v1::RankExit& exit) {
  if (exit.cancelled()) return false;
  // A rank that had been notified of its peer's failure earlier would have exited for that reason, with
  // another code.
  if (Terminated(exit)) return true;
  const bool sent = std::count(std::begin(kSentSignals), std::end(kSentSignals), exit.signal()) != 0;
  return sent && !exit.peer_failed();
}

std::optional<int64_t> PacedLine::Take(absl::Time now) {
  if (now - logged_ < kLinesApart) {
    ++omitted_;
    return std::nullopt;
  }
  logged_ = now;
  return std::exchange(omitted_, 0);
}

AttemptFacts::AttemptFacts(const v1::Job& job, bool recovered)
    : ref{job.id(), job.attempt()},
      recovered(recovered),
      // Only a launch that was being sent when the coordinator died may have been lost without a trace.
      any_sign_(recovered && job.state() != v1::JOB_STATE_STARTING) {
  for (const v1::Job::Placement& placement : job.placements()) {
    NodePart part;
    part.node = placement.node();
    part.first_rank = placement.first_rank();
    part.ranks = placement.ranks();
    part.agent_instance = placement.agent_instance();
    part.devices.assign(placement.devices().begin(), placement.devices().end());
    // Unknown whether the launch was sent before the restart: the agent reports what it hosts.
    part.launched = recovered;
    ranks_.resize(std::max<size_t>(ranks_.size(), part.first_rank + part.ranks));
    parts.push_back(std::move(part));
  }
}

NodePart* AttemptFacts::PartOf(const std::string& node) {
  for (NodePart& part : parts) {
    if (part.node == node) return &part;
  }
  return nullptr;
}

const NodePart* AttemptFacts::PartOfRank(int rank) const {
  for (const NodePart& part : parts) {
    if (rank >= part.first_rank && rank < part.first_rank + part.ranks) return &part;
  }
  return nullptr;
}

RankFacts* AttemptFacts::RankOn(const std::string& node, int rank) {
  const NodePart* part = PartOfRank(rank);
  return part != nullptr && part->node == node ? &ranks_[rank] : nullptr;
}

bool AttemptFacts::TakeReady(const std::string& node, int rank) {
  RankFacts* facts = RankOn(node, rank);
  if (facts == nullptr) return false;
  facts->ready = true;
  return true;
}

bool AttemptFacts::TakeExit(const std::string& node, int rank, const v1::RankExit& exit, absl::Time now,
                            absl::Duration age) {
  RankFacts* facts = RankOn(node, rank);
  if (facts == nullptr) return false;
  if (facts->exit.has_value()) return true;  // Repeated after a reconnect; the first report counts.
  facts->exit = exit;
  facts->exit->set_rank(rank);
  NodePart* part = PartOf(node);
  const absl::Time ended = now - std::max(age, absl::ZeroDuration());
  facts->ended = part->last_ended = std::min(now, std::max(ended, part->last_ended));
  facts->order = exits_++;
  if (Failed(exit)) first_failure_seen_ = std::min(first_failure_seen_, now);
  return true;
}

bool AttemptFacts::TakeStopped(const std::string& node, const v1::FreedMemory& memory) {
  NodePart* part = PartOf(node);
  if (part == nullptr) return false;
  // A repeated report contains no memory data.
  if (!std::exchange(part->stopped, true)) part->memory = memory;
  return true;
}

bool AttemptFacts::TakeNoProgress(const std::string& node, int rank, const v1::RankNoProgress& no_progress,
                                  absl::Time now) {
  RankFacts* facts = RankOn(node, rank);
  if (facts == nullptr) return false;
  facts->stall.reset();
  if (no_progress.no_progress_ms() > 0) facts->stall = no_progress;
  facts->no_progress_at = now;
  return true;
}

bool AttemptFacts::TakeUndeliveredLaunch(const v1::Register& info) {
  NodePart* part = PartOf(info.node());
  if (part == nullptr || !part->launched || part->hosted || part->stopped || stop.has_value()) return false;
  if (!info.reports_past_attempts() || info.instance().empty() || info.instance() != part->agent_instance)
    return false;
  for (int rank = part->first_rank; rank < part->first_rank + part->ranks; ++rank) {
    if (ranks_[rank].ready || ranks_[rank].exit.has_value()) return false;
  }
  const bool had = std::any_of(
      info.past_attempts().begin(), info.past_attempts().end(),
      [this](const v1::PastAttempt& had) { return had.job_id() == ref.job && had.attempt() >= ref.attempt; });
  if (had) return false;
  part->launched = false;
  part->missing_since = part->back_since = absl::InfiniteFuture();
  return true;
}

bool AttemptFacts::TakeAttached(const std::string& node, const std::set<int>& hosted, absl::Time now) {
  NodePart* part = PartOf(node);
  if (part == nullptr) return false;
  launches.Answered(node);
  part->attached = true;
  part->hosted |= !hosted.empty();
  stepped_since_attached = false;
  pace.WaitFrom(now);
  any_sign_ |= !hosted.empty();
  if (!part->launched) return true;
  // The attempt is stopping, and its agent hosts no ranks of it any more.
  if (hosted.empty() && stop.has_value()) part->stopped = true;
  part->missing_since = part->back_since = absl::InfiniteFuture();
  for (int rank = part->first_rank; rank < part->first_rank + part->ranks; ++rank) {
    if (!ranks_[rank].exit.has_value())
      (hosted.count(rank) == 0 ? part->missing_since : part->back_since) = now;
  }
  return true;
}

void AttemptFacts::RestartWaits(absl::Time now) {
  const auto again = [now](absl::Time* since) {
    if (*since != absl::InfiniteFuture()) *since = now;
  };
  again(&first_failure_seen_);
  again(&stop_since);
  for (NodePart& part : parts) {
    again(&part.missing_since);
    again(&part.back_since);
  }
  launches.RestartWaits(now);
  // Progress during the pause may not have been read yet.
  for (RankFacts& rank : ranks_) rank.stall.reset();
  pace.WaitFrom(now);
}

bool AttemptFacts::GaveUpOn(const NodePart& part, absl::Time now) const {
  return launches.Expired(part.node, now) && now - stop_since >= kStopTimeout;
}

bool AttemptFacts::AllReady() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankFacts& rank) { return rank.ready; });
}

bool AttemptFacts::AllExited() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const RankFacts& rank) { return rank.exit.has_value(); });
}

bool AttemptFacts::AllSucceeded() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const RankFacts& rank) { return rank.exit.has_value() && !Failed(*rank.exit); });
}

bool AttemptFacts::HasAnySign() const {
  return any_sign_ || stepped || std::any_of(ranks_.begin(), ranks_.end(), [](const RankFacts& rank) {
           return rank.ready || rank.exit.has_value();
         });
}

const v1::RankExit* AttemptFacts::FirstFailure() const {
  const RankFacts* first = nullptr;
  const auto order = [](const RankFacts& rank) {
    // A killed rank may have been notified of a peer's failure, which its own death caused, before its agent
    // saw it die.
    return std::make_tuple(IsConsequence(*rank.exit), rank.exit->peer_failed(), rank.exit->cancelled(),
                           rank.ended, rank.order);
  };
  for (const RankFacts& rank : ranks_) {
    if (!rank.exit.has_value() || !Failed(*rank.exit)) continue;
    if (first == nullptr || order(rank) < order(*first)) first = &rank;
  }
  if (first == nullptr || first->exit->signal() != 0) return first == nullptr ? nullptr : &*first->exit;
  // Peers see a broken connection before a terminated rank is gone, or before a rank without memory has
  // reported its error.
  const bool has_error = first->exit->has_error_class();
  const RankFacts* cause = nullptr;
  for (const RankFacts& rank : ranks_) {
    if (!rank.exit.has_value() || rank.ended - first->ended > kExitTime) continue;
    const bool reported =
        !has_error && Failed(*rank.exit) && !rank.exit->cancelled() && rank.exit->has_error_class();
    if (!reported && !WasKilledExternally(*rank.exit)) continue;
    if (cause == nullptr || rank.ended < cause->ended) cause = &rank;
  }
  return cause == nullptr ? &*first->exit : &*cause->exit;
}

absl::Time AttemptFacts::LastEnd() const {
  absl::Time last = ranks_.empty() ? absl::InfiniteFuture() : absl::InfinitePast();
  for (const RankFacts& rank : ranks_) {
    last = std::max(last, rank.exit.has_value() ? rank.ended : absl::InfiniteFuture());
  }
  return last;
}

}  // namespace fsdpd
