#include "agent/ranks/rank_reports.h"

#include <absl/strings/str_cat.h>
#include <signal.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/rank/exit_code.h"

namespace fsdpd {
namespace {

// Limit of reported ranks of a refused launch: the most that a coordinator accepts for a node.
constexpr int kMaxRefusedRanks = 1024;
// Once a rank has saved and left, others that remain after this time will not leave on their own.
constexpr absl::Duration kPeerExitTime = absl::Seconds(2);

// Whether the exit is that of a rank that followed a stop.
bool Left(const v1::RankExit& exit) {
  return exit.signal() == SIGTERM || (exit.signal() == 0 && exit.exit_code() == kStoppedExitCode);
}

}  // namespace

RankReports::RankReports(const InternalErrors& errors, const RunningAttempts* attempts, RankLogs* logs,
                         RankEvents* events, Clock* clock)
    : errors_(errors), attempts_(attempts), logs_(logs), events_(events), clock_(clock) {}

void RankReports::AnswerGet(int64_t number, const std::string& value) {
  const std::optional<RendezvousRelay::Waiter> waiter = relay_.Answer(number);
  if (!waiter.has_value()) return;
  RunningAttempt* attempt = Find(*attempts_, waiter->rank.of);
  if (attempt == nullptr) return;
  for (HostedRank& rank : attempt->ranks) {
    if (!(rank.id == waiter->rank) || rank.link == nullptr) continue;
    v1::AgentToRank message;
    message.mutable_store_value()->set_request(waiter->request);
    message.mutable_store_value()->set_value(value);
    rank.Send(message);
  }
}

void RankReports::Read(RunningAttempt* attempt, HostedRank* rank, bool to_the_end) {
  bool drained = false;
  do {
    std::vector<v1::RankToAgent> messages;
    const absl::Status status = rank->link->Receive(&messages, &drained);
    for (const v1::RankToAgent& message : messages)
      attempt->Guard(errors_, clock_, rank->id.rank, [&] { HandleMessage(attempt, rank, message); });
    rank->EndLink(status);
  } while (to_the_end && !drained && rank->link != nullptr);
}

void RankReports::HandleMessage(RunningAttempt* attempt, HostedRank* rank, const v1::RankToAgent& message) {
  if (rank->no_progress.has_value()) rank->no_progress->OnMessage(clock_->Now());
  switch (message.body_case()) {
    case v1::RankToAgent::kStarted:
      if (attempt->planned.peak_bytes() > 0 &&
          message.started().memory_plan().peak_bytes() > attempt->planned.peak_bytes()) {
        LogWarning(
            "rank plans more memory than the coordinator; use the same version %s peak_bytes=%d "
            "planned_bytes=%d",
            ToString(rank->id), message.started().memory_plan().peak_bytes(), attempt->planned.peak_bytes());
      }
      events_->RankReady(rank->id, message.started());
      break;
    case v1::RankToAgent::kStep:
      rank->Take(message.step());
      events_->RankStepped(rank->id, attempt->world, message.step());
      break;
    case v1::RankToAgent::kTimeline:
      events_->RankTimeline(rank->id, message.timeline());
      break;
    case v1::RankToAgent::kSaved:
      events_->CheckpointSaved(rank->id, message.saved());
      break;
    case v1::RankToAgent::kTraceResult:
      events_->RankTraced(rank->id, message.trace_result());
      break;
    case v1::RankToAgent::kMeasured:
      events_->RankMeasured(rank->id, message.measured());
      break;
    case v1::RankToAgent::kFinished:
      rank->final_error = message.finished().error();
      if (message.finished().has_bad_step()) rank->bad_step = message.finished().bad_step();
      if (message.finished().has_error_class()) rank->fault = message.finished().error_class();
      rank->finished = true;
      break;
    case v1::RankToAgent::kStoreSet:
      rank->EndLink(TakeSet(attempt, *rank, message.store_set()));
      break;
    case v1::RankToAgent::kStoreGet:
      rank->EndLink(TakeGet(attempt, *rank, message.store_get()));
      break;
    case v1::RankToAgent::BODY_NOT_SET:
      break;  // From a newer rank; safe to ignore.
  }
}

absl::Status RankReports::TakeSet(RunningAttempt* attempt, const HostedRank& rank, const v1::StoreSet& set) {
  FSDPD_RETURN_IF_ERROR(relay_.Set(rank.id, set));
  if (!attempt->store.has_value()) {
    events_->StoreSet(attempt->id, set);
    return absl::OkStatus();
  }
  FSDPD_ASSIGN_OR_RETURN(const std::vector<int64_t> waiting, attempt->store->Set(set.key(), set.value()));
  for (const int64_t number : waiting) AnswerGet(number, set.value());
  return absl::OkStatus();
}

absl::Status RankReports::TakeGet(RunningAttempt* attempt, const HostedRank& rank, const v1::StoreGet& get) {
  FSDPD_ASSIGN_OR_RETURN(const int64_t number, relay_.Ask(rank.id, get));
  if (!attempt->store.has_value()) {
    events_->StoreGet(attempt->id, get.key(), number);
    return absl::OkStatus();
  }
  FSDPD_ASSIGN_OR_RETURN(const std::string* const value, attempt->store->Get(get.key(), number));
  if (value != nullptr) AnswerGet(number, *value);
  return absl::OkStatus();
}

void RankReports::ReportExit(RunningAttempt* attempt, HostedRank* rank, v1::RankExit exit, bool draining) {
  exit.set_rank(rank->id.rank);
  exit.set_unix_nanos(absl::ToUnixNanos(clock_->Wall()));
  const bool failed = exit.signal() != 0 || exit.exit_code() != 0 || !exit.error().empty();
  const bool died = failed && attempt->stopping && !rank->terminated && !Left(exit);
  exit.set_cancelled(attempt->stopping && !died);
  exit.set_drained(draining && failed && exit.cancelled() && !rank->peer_failure_sent);
  exit.set_peer_failed(rank->peer_failure_sent);
  if (failed) {
    rank->SavePosition();
    exit.set_position(rank->position);
  }
  LogInfo("rank exited %s %s", ToString(rank->id), Describe(exit));
  events_->RankExited(rank->id, exit);
  rank->exit_reported = true;
  // A rank that has finished does not shorten the time of the others: rank 0 may be exporting. If a rank
  // died, no checkpoint can be committed any more.
  if (attempt->stopping && failed) {
    const absl::Time now = clock_->Now();
    attempt->terminate_at = std::min(attempt->terminate_at, died ? now : now + kPeerExitTime);
  }
  const bool left = exit.signal() == 0 && exit.exit_code() == kPeerFailedExitCode;
  if (!failed || attempt->cause_seen || (left && attempt->failed_rank.has_value())) return;
  attempt->failed_rank = exit.rank();
  attempt->cause_seen = !left;
  for (HostedRank& peer : attempt->ranks) NotifyPeerFailed(*attempt, &peer);
}

// A rank that is blocked and does not read it is stopped by the coordinator later.
void RankReports::NotifyPeerFailed(const RunningAttempt& attempt, HostedRank* rank) {
  if (!attempt.failed_rank.has_value() || attempt.stopping || rank->process == nullptr || rank->exit_reported)
    return;
  rank->peer_failure_sent = attempt.cause_seen;
  rank->SavePosition();
  v1::AgentToRank message;
  message.mutable_peer_failed()->set_rank(*attempt.failed_rank);
  rank->Send(message);
}

void RankReports::ReportRefusal(const v1::Launch& launch, const LaunchRefusal& refusal, int newest,
                                bool draining) {
  const AttemptId id{launch.job_id(), launch.attempt()};
  LogWarning("rejected a launch %s reason=%s", ToString(id), refusal.reason);
  const int ranks = std::min(launch.ranks(), kMaxRefusedRanks);
  for (int i = 0; i < ranks; ++i) {
    v1::RankExit exit;
    exit.set_rank(static_cast<int>(int64_t{launch.first_rank()} + i));
    exit.set_exit_code(kRefusedExitCode);
    exit.set_error(absl::StrCat("launch rejected: ", refusal.reason));
    if (refusal.fault != v1::ErrorClass::KIND_UNSPECIFIED) *exit.mutable_error_class() = CauseOf(refusal);
    exit.set_agent_stopping(draining);
    if (newest >= launch.attempt() && !refusal.started) exit.set_newer_attempt(newest);
    exit.set_unix_nanos(absl::ToUnixNanos(clock_->Wall()));
    events_->RankExited({id, exit.rank()}, exit);
  }
}

void RankReports::ReportHang(const RunningAttempt& attempt, const v1::Stop::Hang& hang) {
  for (const HostedRank& rank : attempt.ranks) {
    const std::string object = hang.rank() < 0 ? "the job" : absl::StrCat("rank ", hang.rank());
    logs_->AddNotice(rank.id, absl::StrCat(object, " hangs: ", hang.verdict()));
    if (rank.id.rank == std::max(hang.rank(), 0)) events_->AttemptHung(attempt.id);
  }
}

void RankReports::ReportPositions(const v1::Locate& locate) {
  RunningAttempt* attempt = Find(*attempts_, {locate.job_id(), locate.attempt()});
  if (attempt == nullptr) return;
  for (HostedRank& rank : attempt->ranks) {
    if (rank.process == nullptr || rank.exit_reported) continue;
    const absl::StatusOr<std::string> shown = rank.Position();
    std::string where = !shown.ok()      ? absl::StrCat("unknown position: ", shown.status().message())
                        : shown->empty() ? "no recorded instruction"
                                         : *shown;
    const bool stopped = rank.process->Stopped();
    const std::string notice = absl::StrCat(
        locate.reason(), stopped ? "; the rank was stopped by a signal in " : "; blocked in ", where);
    if (stopped) where = absl::StrCat("stopped by a signal; ", where);
    LogWarning("rank makes no progress %s: %s", ToString(rank.id), notice);
    logs_->AddNotice(rank.id, notice);
    events_->RankBlockedIn(rank.id, where);
  }
}

}  // namespace fsdpd
