#include "coordinator/reconcile/drain_runner.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "base/log.h"
#include "coordinator/attempt/job_pause.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

// Time for a reconnected agent to report the exits of ranks that had ended before.
constexpr absl::Duration kExitReportGrace = absl::Seconds(15);

bool IsDraining(const v1::Cordon& cordon) {
  return cordon.has_drain() && cordon.drain().empty_unix_nanos() == 0;
}

}  // namespace

absl::Status DrainRunner::Start(const std::string& node, const std::string& reason, int64_t grace_ms,
                                bool force) {
  const std::vector<std::string> losing = force ? std::vector<std::string>() : JobsLosingProgress(node);
  if (!losing.empty()) {
    const std::string names = absl::StrJoin(losing, ", ");
    return Refusal(
        absl::StatusCode::kFailedPrecondition, "DRAIN_LOSES_STEPS",
        absl::StrCat("node ", node, " is not drained: ", names, losing.size() == 1 ? " writes" : " write",
                     " no checkpoints and would start from scratch elsewhere; cancel ",
                     losing.size() == 1 ? "it" : "them", ", or drain with --force"),
        {{"jobs", absl::StrJoin(losing, ",")}});
  }
  const std::optional<v1::Cordon> known = parts_.cordons->Find(node);
  v1::Cordon cordon = known.value_or(v1::Cordon());
  const bool same_reason = reason.empty() || reason == cordon.reason();
  if (cordon.drain().empty_unix_nanos() > 0 && parts_.slots->HasNothing(node)) {
    // A second drain would change nothing.
    if (same_reason) return absl::OkStatus();
    cordon.set_reason(reason);
    return parts_.cordons->Set(node, cordon);
  }
  if (IsDraining(cordon) && same_reason && cordon.drain().force() == force &&
      cordon.drain().grace_ms() == grace_ms)
    return absl::OkStatus();
  const int64_t now = absl::ToUnixNanos(parts_.clock->Wall());
  if (!known.has_value()) cordon.set_unix_nanos(now);
  if (!reason.empty()) cordon.set_reason(reason);
  if (cordon.reason().empty()) cordon.set_reason("drained");
  not_empty_since_.erase(node);
  cordon.mutable_drain()->Clear();
  cordon.mutable_drain()->set_unix_nanos(now);
  cordon.mutable_drain()->set_grace_ms(grace_ms);
  cordon.mutable_drain()->set_force(force);
  const absl::Status set = parts_.cordons->Set(node, cordon);
  if (set.ok()) LogInfo("drain started node=%s reason=%s", node, cordon.reason());
  return set;
}

// Jobs that train on the node and have no checkpoint to resume from.
std::vector<std::string> DrainRunner::JobsLosingProgress(const std::string& node) const {
  std::vector<std::string> losing;
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kLaunched)) {
    const v1::Job& job = parts_.jobs->At(id).job;
    if (Trains(job) && IsOn(job.placements(), node) && FilledSpec(job).checkpoint().dir().empty())
      losing.push_back(id);
  }
  return losing;
}

// A write that failed is retried in the next tick.
void DrainRunner::Advance() {
  for (const auto& [node, cordon] : parts_.cordons->All()) {
    if (!IsDraining(cordon)) continue;
    for (const std::string& id : parts_.jobs->In(JobIndex::View::kPreflight)) {
      LiveJob& live = parts_.jobs->At(id);
      if (!IsOn(live.job.reserved_nodes(), node)) continue;
      parts_.jobs
          ->Commit(&live, JobEvent::kUnplace,
                   absl::StrCat("node ", node,
                                " was drained before the launch; the job is launched when slots are free"))
          .IgnoreError();
    }
    for (const std::string& id : parts_.jobs->In(JobIndex::View::kLaunched)) {
      LiveJob& live = parts_.jobs->At(id);
      if (Trains(live.job) && IsOn(live.job.placements(), node)) MoveJob(&live, node, cordon.drain());
    }
    if (IsEmpty(node)) {
      MarkEmpty(node, cordon);
    } else {
      MarkNotEmpty(node, cordon);
    }
  }
}

// Once per drain, even if agents later list ranks that have already ended.
void DrainRunner::MarkEmpty(const std::string& node, v1::Cordon cordon) {
  const v1::Cordon::Drain before = parts_.cordons->StoredBehind(node).value_or(v1::Cordon()).drain();
  cordon.mutable_drain()->set_empty_unix_nanos(
      before.empty_unix_nanos() > 0 ? before.empty_unix_nanos() : absl::ToUnixNanos(parts_.clock->Wall()));
  not_empty_since_.erase(node);
  if (parts_.cordons->Set(node, cordon).ok()) LogInfo("drained node is empty node=%s", node);
}

void DrainRunner::MarkNotEmpty(const std::string& node, v1::Cordon cordon) {
  if (parts_.slots->HasNothing(node)) return;  // Its agent is not connected.
  const auto since = not_empty_since_.find(node);
  if (since == not_empty_since_.end() || parts_.presence->now() - since->second < kExitReportGrace) return;
  cordon.mutable_drain()->set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
  if (!parts_.cordons->Set(node, cordon).ok()) return;
  not_empty_since_.erase(since);
  LogWarning("drained node is no longer empty node=%s", node);
}

// A job whose newest checkpoint could not be written stays, without losing steps, until its saves work again.
void DrainRunner::MoveJob(LiveJob* live, const std::string& node, const v1::Cordon::Drain& drain) {
  AttemptFacts* facts = parts_.attempts->Find(live->job);
  if (facts == nullptr) return;
  const bool saves = WhyNotPaused(live->job, drain.grace_ms()).empty();
  if (!saves && !drain.force()) return;
  const int64_t grace_ms = saves ? drain.grace_ms() : 0;
  const std::string why =
      absl::StrCat("node ", node, " is drained: the ranks ", saves ? "save and exit" : "exit without a save",
                   ", and the job resumes elsewhere when slots are free");
  const absl::Status stored = parts_.jobs->Commit(live, JobEvent::kPause, why, [&](v1::Job* job) {
    v1::Job::Pause* pause = job->mutable_pause();
    pause->set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
    pause->set_grace_ms(grace_ms);
    pause->set_resumes_automatically(true);
    pause->set_drained_from(node);
  });
  if (stored.ok())
    parts_.attempts->BeginStop(facts, grace_ms, absl::StrCat("node ", node, " is drained"), /*save=*/saves);
}

// The state of a lost node is unknown: its jobs resume elsewhere, but their ranks may still run on it. A node
// that shut down gracefully has no ranks.
bool DrainRunner::IsEmpty(const std::string& node) const {
  const NodeView* view = parts_.presence->Find(node);
  return view != nullptr && (parts_.presence->HasReported(*view) || view->left) &&
         parts_.slots->HasNothing(node);
}

void DrainRunner::OnRanksFound(const std::string& node) {
  std::optional<v1::Cordon> cordon = parts_.cordons->Find(node);
  if (!cordon.has_value() || cordon->drain().empty_unix_nanos() == 0 || parts_.slots->HasNothing(node))
    return;
  cordon->mutable_drain()->clear_empty_unix_nanos();
  parts_.cordons->HoldUnstored(node, *cordon);
  not_empty_since_[node] = parts_.presence->now();
}

}  // namespace fsdpd
