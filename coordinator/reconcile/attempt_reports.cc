#include "coordinator/reconcile/attempt_reports.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "coordinator/attempt/rank_positions.h"
#include "coordinator/attempt/verdict.h"
#include "coordinator/job/bad_steps.h"
#include "coordinator/job/job_checkpoints.h"
#include "coordinator/job/job_ledger.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/job/job_warnings.h"
#include "coordinator/metrics/meters.h"

namespace fsdpd {
namespace {

// All agents of an attempt report within this time (agent/metrics/compute_times.h).
constexpr absl::Duration kScoreEvery = absl::Seconds(5);

}  // namespace

void AttemptReports::OnUpdate(const std::string& node, const v1::RankUpdate& update, absl::Time received,
                              absl::Duration age) {
  AttemptFacts* facts = parts_.attempts->Find(AttemptRef{update.job_id(), update.attempt()});
  if (facts == nullptr) return;  // An older attempt, or a repeated report about one that has ended.
  facts->launches.Answered(node);
  switch (update.event_case()) {
    case v1::RankUpdate::kReady:
      if (facts->TakeReady(node, update.rank()) && update.rank() == 0)
        OnRankZeroReady(node, update.ready(), facts);
      break;
    case v1::RankUpdate::kExit:
      if (facts->TakeExit(node, update.rank(), update.exit(), parts_.presence->now(),
                          parts_.presence->now() - received + age) &&
          update.rank() == 0)
        OnRankZeroExit(*facts, update.exit());
      break;
    case v1::RankUpdate::kStep:
      if (update.rank() == 0) OnStep(facts, update.step());
      return;  // It may have ended the attempt.
    case v1::RankUpdate::kSaved:
      if (update.rank() == 0) OnCheckpoint(node, update.saved(), facts);
      break;
    case v1::RankUpdate::kPosition:
      OnPosition(update, *facts);
      break;
    case v1::RankUpdate::kNoProgress:
      facts->TakeNoProgress(node, update.rank(), update.no_progress(), parts_.presence->now());
      break;
    case v1::RankUpdate::kLaunchAcknowledged:
    case v1::RankUpdate::kTimeline:  // The timeline board takes it (agent_session.cc).
    case v1::RankUpdate::EVENT_NOT_SET:
      break;
  }
}

void AttemptReports::OnStep(AttemptFacts* facts, const v1::StepReport& step) {
  if (!parts_.attempts->IsCurrent(facts->ref)) return;
  // A client that sees a step may request a trace: the job must be RUNNING before its first step is shown.
  if (parts_.jobs->At(facts->ref.job).job.state() == v1::JOB_STATE_STARTING && facts->AllReady()) {
    const AttemptRef ref = facts->ref;
    parts_.judge->Advance(ref.job);
    facts = parts_.attempts->Find(ref);
    if (facts == nullptr || !parts_.attempts->IsCurrent(ref)) return;
  }
  facts->stepped = facts->stepped_since_attached = true;
  facts->launches.AllAnswered();
  LiveJob& live = parts_.jobs->At(facts->ref.job);
  const v1::StepReport before = live.job.last_step();
  const int64_t newest = live.job.ledger().newest_step();
  if (!TakeStep(step, &live.job)) return;
  facts->pace.Take(before, step, parts_.presence->now());
  MoveStep(before, step, parts_.jobs->ledger_date().Now(), &live.job);
  if (parts_.meters != nullptr) parts_.meters->Stepped(live.job, before.step(), newest, parts_.clock->Wall());
  TakeCounted(step, &live.job);
  live.progressed = true;
  if (TakeSkipped(step, parts_.clock->Wall(), &live.job)) {
    if (const std::optional<int64_t> omitted = facts->skips_line.Take(parts_.presence->now()))
      LogInfo("step skipped job=%s attempt=%d step=%d first_sample=%d end_sample=%d omitted=%d",
              facts->ref.job, facts->ref.attempt, step.step(), step.bad_step().first_sample(),
              step.bad_step().end_sample(), *omitted);
    parts_.jobs->ShowUnsaved(&live);
  }
  KeepWarnings(step, &live);
  parts_.board->PublishStep(live.job);
}

// Stored before it is published: a report arrives once, and a revision must not be used for two different
// states.
void AttemptReports::KeepWarnings(const v1::StepReport& step, LiveJob* live) {
  if (step.warnings().empty()) return;
  v1::Job updated = live->job;
  if (!TakeWarnings(step, parts_.clock->Wall(), &updated)) return;
  const absl::Status stored = parts_.store->Update(updated);
  if (!stored.ok() && !parts_.jobs->Leads()) return;
  parts_.jobs->Adopt(live, std::move(updated), std::string(stored.message()));
}

// Does not wait for the tick's verdict: a save proves that all ranks run, and the job's history must show
// them in this order.
void AttemptReports::ApplyReady(const AttemptFacts& facts, const LiveJob& live) {
  absl::StatusOr<v1::Job> next = parts_.jobs->After(live, JobEvent::kReady, RunningReason(facts));
  if (next.ok()) parts_.jobs->CommitAll({*std::move(next)});
}

// Stored within a second, like steps; the agent repeats it if the coordinator dies first.
void AttemptReports::OnCheckpoint(const std::string& node, const v1::SavedCheckpoint& saved,
                                  AttemptFacts* facts) {
  const AttemptRef& ref = facts->ref;
  if (!parts_.attempts->IsCurrent(ref)) return;
  LiveJob& live = parts_.jobs->At(ref.job);
  if (!CanHaveSaved(saved, live.job)) return RefuseCheckpoint(node, saved.step(), facts);
  const bool exports = !saved.format().empty();
  if (exports && std::exchange(facts->exported, true)) return;
  if (live.job.state() == v1::JOB_STATE_STARTING) ApplyReady(*facts, live);
  if (!TakeSaved(saved, parts_.clock->Wall(), &live.job)) return;
  PacedLine* const line = saved.error().empty() ? &facts->saves_line : &facts->failed_saves_line;
  // An attempt exports once, so this line needs no limit.
  if (const auto omitted = exports ? std::optional<int64_t>(0) : line->Take(parts_.presence->now()))
    LogInfo("checkpoint reported job=%s attempt=%d step=%d seconds=%.1f omitted=%d error=%s", ref.job,
            ref.attempt, saved.step(), saved.seconds(), *omitted, saved.error());
  MoveSave(saved, parts_.jobs->ledger_date().Now(), &live.job);
  parts_.jobs->ShowUnsaved(&live);
}

// One log line per attempt: a node that forges checkpoints can report any number of them.
void AttemptReports::RefuseCheckpoint(const std::string& node, int64_t step, AttemptFacts* facts) {
  if (parts_.meters != nullptr) parts_.meters->RefusedFromAgent("rank");
  if (!std::exchange(facts->refused_checkpoint, true))
    LogWarning("rejected a checkpoint of an invalid step node=%s job=%s attempt=%d step=%d", node,
               facts->ref.job, facts->ref.attempt, step);
}

void AttemptReports::OnRankZeroReady(const std::string& node, const v1::RankReady& ready,
                                     AttemptFacts* facts) {
  const AttemptRef& ref = facts->ref;
  if (!parts_.attempts->IsCurrent(ref)) return;
  LiveJob& live = parts_.jobs->At(ref.job);
  if (ready.epoch_samples() > 0 && ready.epoch_samples() != live.job.epoch_samples()) {
    KeepSteps(ready.steps(), &live.job);
    live.job.set_epoch_samples(ready.epoch_samples());
    parts_.jobs->ShowUnsaved(&live);
  }
  const v1::RestoredCheckpoint* restored = ready.has_restored() ? &ready.restored() : nullptr;
  if (restored != nullptr && !CanHaveRestored(*restored, live.job))
    return RefuseCheckpoint(node, restored->step(), facts);
  if (!TakeStart(restored, parts_.clock->Wall(), &live.job)) return;
  LogInfo("attempt started job=%s attempt=%d after_step=%d path=%s", ref.job, ref.attempt,
          live.job.restored().step(), live.job.restored().path());
  MoveLoad(ready.restored(), parts_.jobs->ledger_date().Now(), &live.job);
  parts_.jobs->ShowUnsaved(&live);
}

void AttemptReports::OnRankZeroExit(const AttemptFacts& facts, const v1::RankExit& exit) {
  if (!parts_.attempts->IsCurrent(facts.ref)) return;
  LiveJob& live = parts_.jobs->At(facts.ref.job);
  // The previous coordinator may have died before it stored the last steps.
  if (exit.has_last_report()) {
    const v1::StepReport before = live.job.last_step();
    if (TakeStep(exit.last_report(), &live.job))
      MoveStep(before, exit.last_report(), parts_.jobs->ledger_date().Now(), &live.job);
    TakeWarnings(exit.last_report(), parts_.clock->Wall(), &live.job);
  }
  TakeCounted(exit, &live.job);
  parts_.jobs->MarkUnsaved(&live);
}

// A position that arrives after steps have resumed is ignored.
void AttemptReports::OnPosition(const v1::RankUpdate& update, const AttemptFacts& facts) {
  if (!parts_.attempts->IsCurrent(facts.ref)) return;
  LiveJob& live = parts_.jobs->At(facts.ref.job);
  if (live.job.stalled_since_unix_nanos() == 0) return;
  if (!TakePosition(update.rank(), update.position().position(), &live.job)) return;
  live.new_positions = true;
  parts_.jobs->MarkUnsaved(&live);
}

void AttemptReports::OnComputeTimes(const std::string& node, const v1::ComputeTimes& times) {
  AttemptFacts* facts = parts_.attempts->Find(AttemptRef{times.job_id(), times.attempt()});
  if (facts == nullptr || !parts_.attempts->IsCurrent(facts->ref)) return;
  const v1::ComputeTimes::Rank* refused = nullptr;
  for (const v1::ComputeTimes::Rank& rank : times.ranks()) {
    const NodePart* part = facts->PartOfRank(rank.rank());
    const bool hosted = part != nullptr && part->node == node;
    if (!hosted || !facts->compute.Take(rank, static_cast<int>(facts->ranks().size()))) refused = &rank;
  }
  if (refused == nullptr) return;
  if (parts_.meters != nullptr) parts_.meters->RefusedFromAgent("compute_times");
  if (bad_times_from_.insert(node).second)
    LogWarning("rejected invalid compute times node=%s job=%s rank=%d steps=%d seconds=%g", node,
               times.job_id(), refused->rank(), refused->steps(), refused->seconds());
}

// For readers only: no decision depends on it, and it is reported again.
void AttemptReports::ShowSlowRanks() {
  for (auto& [ref, facts] : parts_.attempts->all()) {
    if (!parts_.attempts->IsCurrent(ref) || parts_.presence->now() - facts.scored < kScoreEvery ||
        !facts.compute.TakeChanged())
      continue;
    facts.scored = parts_.presence->now();
    LiveJob& live = parts_.jobs->At(ref.job);
    const int64_t stages = std::max<int64_t>(live.job.spec().parallel().pipeline(), 1);
    live.job.clear_slowest_ranks();
    for (v1::SlowRank& slow : facts.compute.Slowest(stages)) {
      slow.set_node(facts.PartOfRank(slow.rank())->node);
      *live.job.add_slowest_ranks() = std::move(slow);
    }
    live.progressed = true;
    parts_.board->Move(live.job);
  }
}

// Ranks answer together, so their positions are published once per tick.
void AttemptReports::PublishPositions() {
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kLaunched)) {
    LiveJob& live = parts_.jobs->At(id);
    if (std::exchange(live.new_positions, false)) parts_.board->Replace(JobTable::Shown(live));
  }
}

}  // namespace fsdpd
