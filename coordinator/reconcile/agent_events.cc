// Reconciler: requests of clients and messages of agents, pushed by their threads and applied to jobs and
// facts on the reconciler's thread. Only a cancel (other requests are in job_commands.cc) and a registration
// act immediately; the next tick draws all other conclusions.
#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "coordinator/attempt/job_pause.h"
#include "coordinator/attempt/rank_positions.h"
#include "coordinator/job/bad_steps.h"
#include "coordinator/job/job_checkpoints.h"
#include "coordinator/job/job_ledger.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/job/job_warnings.h"
#include "coordinator/job/recorded_reason.h"
#include "coordinator/metrics/meters.h"
#include "coordinator/reconcile/reconciler.h"
#include "coordinator/request/errors.h"
#include "coordinator/request/job_etag.h"

namespace fsdpd {
namespace {

constexpr char kMeasuring[] = "preflight";  // HostedAttempt.job_id of a preflight, which belongs to no job.
// All agents of an attempt report within this time (agent/metrics/compute_times.h).
constexpr absl::Duration kScoreEvery = absl::Seconds(5);
// For attempts that an agent claims to host: time to save (kUnknownGraceMs) and to report the end.
constexpr absl::Duration kLeftoverTimeout = absl::Seconds(75);
// A rank is killed this long after its grace.
constexpr absl::Duration kKilledWithin = absl::Seconds(2);
// An agent hosts as many attempts as it has slots, and repeats the ends of some earlier ones.
constexpr int kMaxLeftovers = 64;
constexpr char kStopping[] = "stopping the ranks", kStopsAlready[] = "the ranks leave already";
constexpr char kStoppingRest[] = "stopping what is left of it";
constexpr absl::string_view kCancelWords[] = {kStopping, kStopsAlready, kStoppingRest};

}  // namespace

void Reconciler::Submitted(v1::Job job, absl::Time admitted) {
  const absl::Time begin = ledger_date_.Of(std::min(admitted, parts_.clock->Now()));
  events_.Push([this, begin, job = std::move(job)] {
    queue_.insert(PlaceInQueue(job));
    index_.Set(job);
    LiveJob& live = jobs_[job.id()];
    live.job = job;
    BeginLedger(begin, &live.job);
    LogInfo("job submitted job=%s name=%s", job.id(), job.spec().name());
  });
}

absl::StatusOr<v1::Job> Reconciler::Call(const std::string& done, std::function<void(const Answer&)> take) {
  return events_.Call<absl::StatusOr<v1::Job>>(
      std::move(take),
      absl::UnavailableError(absl::StrCat("the coordinator is stopping; the job was not ", done)), OwnTick());
}

absl::StatusOr<v1::Job> Reconciler::CallWithEtag(const std::string& id, const std::string& etag,
                                                 const std::string& done,
                                                 std::function<void(const Answer&)> take) {
  if (etag.empty()) return Call(done, std::move(take));
  return Call(done, [this, id, etag, take = std::move(take)](const Answer& answer) {
    const auto live = jobs_.find(id);
    const absl::StatusOr<v1::Job> job = live != jobs_.end() ? Shown(live->second) : parts_.store->Get(id);
    if (!job.ok()) return answer(job.status());
    const std::string now = EtagOf(*job);
    if (now == etag) return take(answer);
    answer(Refusal(
        absl::StatusCode::kAborted, "JOB_CHANGED",
        absl::StrCat("job ", id, ": the etag does not match, because the job has changed (it is ",
                     absl::AsciiStrToLower(ShortName(job->state())), ", in revision ", job->revision(), ")"),
        {{"etag", now}}));
  });
}

EventQueue::Event Reconciler::OwnTick() {
  if (options_.own_thread) return nullptr;
  return [this] { RunOnce(); };
}

absl::StatusOr<v1::Job> Reconciler::Cancel(const std::string& id, const std::string& reason, int64_t grace_ms,
                                           const std::string& etag) {
  return CallWithEtag(id, etag, "cancelled",
                      [=](const Answer& answer) { TakeCancel(id, reason, grace_ms, answer); });
}

void Reconciler::TakeCancel(const std::string& id, const std::string& reason, int64_t grace_ms,
                            const Answer& answer) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return answer(parts_.store->Get(id));
  LiveJob& live = it->second;
  ReadPresence();  // A lost node may return in this turn of the loop.
  AttemptFacts* facts = FactsOf(live.job);
  // Ranks that already exit without a save cannot be ordered to save.
  const bool may_save = facts == nullptr || !facts->stop.has_value() || facts->stop->save;
  const bool saves = may_save && grace_ms > 0 && !FilledSpec(live.job).checkpoint().dir().empty();
  const Edit keep_grace = [&](v1::Job* job) {
    job->mutable_cancellation()->set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
    // Ranks that already exit keep their shorter grace, also after a restart of the coordinator.
    const bool leaves = facts != nullptr && facts->stop.has_value();
    job->mutable_cancellation()->set_grace_ms(leaves ? std::min(grace_ms, facts->stop->grace_ms) : grace_ms);
  };
  if (live.job.state() != v1::JOB_STATE_CANCELLING) {
    const bool idle = !HasAttempt(live.job.state());
    // Ranks of the last attempt may be back on a node that was lost; the job ends when they have exited.
    const bool rest = idle && !LeftoversOf(id).empty();
    const std::string words =
        absl::StrCat(rest    ? std::string(kStoppingRest)
                     : idle  ? absl::StrCat(IdleCancelReason(live.job), PossibleLeftovers(live.job))
                     : saves ? absl::StrCat(kStopping, ", which save first if the grace suffices")
                             : std::string(kStopping),
                     reason.empty() ? "" : ": ", reason);
    absl::Status cancelled =
        Commit(&live, rest ? JobEvent::kCancelRest : JobEvent::kCancel, words, keep_grace);
    // A queued or paused job has no ranks to stop, so an unstored cancel is refused: a restarted coordinator
    // would not know of it and launch the job.
    if (!cancelled.ok() && !idle)
      cancelled = CommitUnstored(&live, JobEvent::kCancel, words, cancelled, keep_grace);
    if (!cancelled.ok()) return answer(cancelled);
    if (rest && facts == nullptr) facts = FactsOfNothing(live.job);
  } else if (!reason.empty() &&
             !HasRecordedReason(live.job, reason, {v1::JOB_STATE_CANCELLING}, kCancelWords)) {
    // The ranks exit even if the new reason cannot be stored.
    const std::string words = absl::StrCat(kStopsAlready, ": ", reason);
    if (const absl::Status stored = Commit(&live, JobEvent::kNote, words); !stored.ok())
      CommitUnstored(&live, JobEvent::kNote, words, stored).IgnoreError();
  }
  answer(Shown(live));
  if (live.job.state() == v1::JOB_STATE_CANCELLING) {
    // A second cancel may shorten the grace, never lengthen it.
    const bool shorter = !facts->stop.has_value() || grace_ms < facts->stop->grace_ms;
    if (shorter) {
      keep_grace(&live.job);
      MarkUnsaved(&live);
      BeginStop(facts, grace_ms, reason.empty() ? "cancelled" : reason, saves);
    }
  }
  ForgetIfEnded(id);
}

void Reconciler::Attached(const v1::Register& info, int64_t stream_generation) {
  events_.Push([this, info, stream_generation] { TakeAttached(info, stream_generation); });
}

void Reconciler::TakeAttached(const v1::Register& info, int64_t stream_generation) {
  const std::string& node = info.node();
  attached_[node] = stream_generation;
  node_failures_.Attached(node, info.instance(), parts_.clock->Wall());
  ResumeHealth(node, info.instance());
  ForgetDeletedHost(node);
  std::map<AttemptRef, std::set<int>> hosted;
  for (const v1::HostedAttempt& attempt : info.hosted()) {
    hosted[{attempt.job_id(), attempt.attempt()}].insert(attempt.ranks().begin(), attempt.ranks().end());
  }
  const auto measuring = std::find_if(hosted.begin(), hosted.end(),
                                      [](const auto& each) { return each.first.job == kMeasuring; });
  if (TakeMeasuring(node, measuring != hosted.end())) hosted.erase(measuring);
  const size_t hosts = hosted.size();
  int leftovers = 0;
  for (auto next = attempts_.begin(); next != attempts_.end();) {
    const auto attempt = next++;
    auto& [ref, facts] = *attempt;
    NodePart* part = facts.PartOf(node);
    if (part == nullptr) continue;
    const auto it = hosted.find(ref);
    if (it == hosted.end() && IsCurrent(ref) && facts.TakeUndeliveredLaunch(info))
      LogInfo("resent a launch that was not delivered node=%s job=%s attempt=%d", node, ref.job, ref.attempt);
    facts.TakeAttached(node, it == hosted.end() ? std::set<int>() : it->second, lease_.now());
    if (it != hosted.end()) hosted.erase(it);
    leftovers += part->leftover && !part->stopped ? 1 : 0;
    if (part->leftover && part->stopped && facts.parts.size() == 1) {
      // Close it now and not at the end of the tick: an agent may register many times until then.
      CloseAttempt(attempt);
    } else if (facts.stop.has_value()) {
      SendStop(facts, *part);
    } else if (!part->launched && IsCurrent(ref)) {
      part->agent_instance = info.instance();
      SendLaunch(jobs_.at(ref.job).job, part);
    }
  }
  // Unwanted attempts are normal after a restart: agents list an attempt for a while after its end.
  LogInfo("agent attached node=%s slots=%d hosted_attempts=%d unwanted=%d", node, info.slots(), hosts,
          hosted.size());
  int refused = 0;
  const AttemptRef* first_refused = nullptr;
  for (const auto& [ref, ranks] : hosted) {
    if (TakeUnwanted(info, ref, leftovers++)) continue;
    if (!ranks.empty())
      refused_until_[node] = lease_.now() + absl::Milliseconds(kStopGraceMs) + kKilledWithin;
    if (++refused == 1) first_refused = &ref;
    if (parts_.meters != nullptr) parts_.meters->RefusedFromAgent("registration");
  }
  if (refused > 0)
    LogWarning(
        "rejected hosted attempts that the coordinator did not launch node=%s count=%d job=%s attempt=%d",
        node, refused, absl::CHexEscape(first_refused->job), first_refused->attempt);
  // An agent lists attempts for a while after their end, without ranks.
  const bool has_ranks =
      std::any_of(info.hosted().begin(), info.hosted().end(),
                  [](const v1::HostedAttempt& attempt) { return !attempt.ranks().empty(); });
  if (has_ranks) RevertEmpty(node);
}

// Handles a hosted attempt that is not placed on the node now: it ended while the node was away, is newer
// than a state that was restored from a backup, or belongs to another cluster. It is stopped. It affects the
// job only if the job was placed on this node (attempt_hosts.h).
bool Reconciler::TakeUnwanted(const v1::Register& info, const AttemptRef& ref, int leftovers) {
  const std::string& node = info.node();
  const auto refuse = [&](const char* why) {
    AttemptFacts refused;
    refused.ref = ref;
    refused.stop = StopOrder{kStopGraceMs, why};
    NodePart part;
    part.node = node;
    SendStop(refused, part);
    return false;
  };
  if (ref.job == kMeasuring) return refuse("the coordinator did not request this preflight");
  if (!CheckJobId(ref.job).ok()) return refuse("invalid job id");
  if (leftovers >= std::max(kMaxLeftovers, info.slots()))
    return refuse("the agent reports more attempts than it can host");
  const auto it = jobs_.find(ref.job);
  LiveJob* live = it == jobs_.end() ? nullptr : &it->second;
  absl::StatusOr<v1::Job> ended = absl::NotFoundError("");
  if (live == nullptr) ended = parts_.store->Get(ref.job);
  if (live == nullptr && !ended.ok()) {
    const StopOrder order = absl::IsNotFound(ended.status())
                                ? OrderForUnknown(ref.job)
                                : StopOrder{kStopGraceMs, "the job's record cannot be read"};
    StopUnwanted(info, ref, order, /*placed=*/false, lease_.now() + kLeftoverTimeout);
    return true;
  }
  const v1::Job& job = live != nullptr ? live->job : *ended;
  const int newest = live != nullptr ? live->newest_elsewhere : job.attempt() + kMaxAttemptsAhead;
  const Hosting hosting = HostingOf(job, node, ref.attempt, newest);
  // The record of a job that was never launched has no nodes. Right after a restart the job waits for agents
  // anyway. If the state dates from before its launch, the job also waits for the end of the attempts that
  // agents report, but only once: a node with a false claim can only delay it.
  const bool unlaunched =
      live != nullptr && job.placements().empty() && live->awaits_agents && !lease_.Settled();
  const bool delays = hosting == Hosting::kNone && unlaunched && ref.attempt <= kMaxAttemptsAhead;
  const StopOrder over = {kStopGraceMs, "the attempt has ended"};
  // The record of an older release does not contain the nodes of earlier attempts.
  const bool of_old_record = live != nullptr && job.earlier_hosts().empty() && ref.attempt < job.attempt();
  if (hosting == Hosting::kNone && of_old_record) {
    StopUnwanted(info, ref, over, /*placed=*/false, WaitForLeftovers(node, live));
    return true;
  }
  if (hosting == Hosting::kNone && !delays) return refuse("the job was not placed on this node");
  if (live != nullptr && hosting != Hosting::kPlaced) TakeNewerAttempt(node, ref.attempt, live);
  const StopOrder newer = {kUnknownGraceMs, "the coordinator's state is older than this attempt", true};
  StopUnwanted(info, ref, hosting == Hosting::kPlaced ? over : newer, /*placed=*/!delays,
               WaitForLeftovers(node, live));
  return true;
}

// The wait counts from the node's first claim since the last launch: a node that never reports an end, or
// claims one attempt after another, delays the next launch only once. A job that is not live may be retried.
absl::Time Reconciler::WaitForLeftovers(const std::string& node, LiveJob* live) {
  if (live == nullptr) return lease_.now() + kLeftoverTimeout;
  return live->leftovers_until.try_emplace(node, lease_.now() + kLeftoverTimeout).first->second;
}

// The newer attempt saves its progress, and the job's next attempt resumes from there.
void Reconciler::TakeNewerAttempt(const std::string& node, int attempt, LiveJob* live) {
  if (HasAttempt(live->job.state())) {
    AttemptFacts* facts = FactsOf(live->job);
    facts->newer_attempt = std::max(facts->newer_attempt, attempt);
    facts->newer_on = node;
    return;
  }
  const std::string words =
      absl::StrCat("node ", node, " hosts attempt ", attempt,
                   ", which the coordinator's state does not contain; that attempt saves and stops first");
  const Edit edit = [&](v1::Job* job) { NumberAfter(attempt, job); };
  // If this cannot be stored, an agent rejects a launch with a number that it already knows.
  Commit(live, JobEvent::kNote, words, edit).IgnoreError();
}

void Reconciler::StopUnwanted(const v1::Register& info, const AttemptRef& ref, const StopOrder& order,
                              bool placed, absl::Time awaited_until) {
  NodePart part;
  part.node = info.node();
  part.launched = part.attached = part.hosted = part.leftover = true;
  part.awaited_until = awaited_until;
  hosts_.AddLeftover(ref, part.node, placed);
  AttemptFacts& facts = attempts_[ref];
  facts.ref = ref;
  facts.parts.push_back(part);
  if (facts.stop.has_value())
    return SendStop(facts, part);  // The same order as for the attempt's other nodes.
  if (order.save && placed) parts_.rendezvous->Open(ref);
  BeginStop(&facts, order.grace_ms, order.reason, order.save);
}

// While events are retained, the job's newest event states how the job ended. Without one, the coordinator's
// state may be older than the job, for example a restored backup: the ranks save first.
StopOrder Reconciler::OrderForUnknown(const std::string& job) const {
  EventQuery newest;
  newest.job = job;
  newest.newest_first = true;
  newest.limit = 1;
  const absl::StatusOr<EventPage> page = parts_.store->events().Read(newest);
  const v1::Event last = page.ok() && !page->events.empty() ? page->events.front() : v1::Event();
  if (last.kind() == v1::EVENT_KIND_DELETED) return {kStopGraceMs, "the job was deleted"};
  if (IsEnded(last.state()))
    return {kStopGraceMs,
            "the job has ended and its record has expired (--keep-ended-jobs, --keep-ended-days)"};
  return {kUnknownGraceMs,
          "unknown job: it has ended and its record has expired, or the coordinator's state is older than "
          "the job",
          /*save=*/true};
}

void Reconciler::OnReport(const std::string& node, v1::RankUpdate update, int64_t sent_unix_nanos) {
  const int64_t happened = update.exit().unix_nanos();
  const bool stamped = happened != 0 && sent_unix_nanos != 0;
  const absl::Duration since = absl::FromUnixNanos(sent_unix_nanos) - absl::FromUnixNanos(happened);
  const absl::Duration age = stamped ? std::max(absl::ZeroDuration(), since) : absl::ZeroDuration();
  // Thousands of nodes report steps, and after a disconnect also their running ranks. Conclusions from these
  // can wait for a tick.
  const bool unhurried = !update.has_exit();
  EventQueue::Event event = [this, node, update = std::move(update), received = parts_.clock->Now(), age] {
    TakeUpdate(node, update, received, age);
  };
  if (unhurried) {
    events_.PushLowPriority(std::move(event));
  } else {
    events_.Push(std::move(event));
  }
}

void Reconciler::TakeUpdate(const std::string& node, const v1::RankUpdate& update, absl::Time received,
                            absl::Duration age) {
  AttemptFacts* facts = FactsOf(AttemptRef{update.job_id(), update.attempt()});
  if (facts == nullptr) return;  // An older attempt, or a repeated report about one that has ended.
  facts->launches.Answered(node);
  switch (update.event_case()) {
    case v1::RankUpdate::kReady:
      if (facts->TakeReady(node, update.rank()) && update.rank() == 0)
        TakeRankZeroReady(node, update.ready(), facts);
      break;
    case v1::RankUpdate::kExit:
      if (facts->TakeExit(node, update.rank(), update.exit(), lease_.now(), lease_.now() - received + age) &&
          update.rank() == 0)
        TakeRankZeroExit(*facts, update.exit());
      break;
    case v1::RankUpdate::kStep:
      if (update.rank() == 0) TakeStepReport(facts, update.step());
      return;  // It may have ended the attempt.
    case v1::RankUpdate::kSaved:
      if (update.rank() == 0) TakeCheckpoint(node, update.saved(), facts);
      break;
    case v1::RankUpdate::kPosition:
      TakeRankPosition(update, *facts);
      break;
    case v1::RankUpdate::kNoProgress:
      facts->TakeNoProgress(node, update.rank(), update.no_progress(), lease_.now());
      break;
    case v1::RankUpdate::kLaunchAcknowledged:
    case v1::RankUpdate::kTimeline:  // The timeline board takes it (agent_session.cc).
    case v1::RankUpdate::EVENT_NOT_SET:
      break;
  }
}

void Reconciler::TakeStepReport(AttemptFacts* facts, const v1::StepReport& step) {
  if (!IsCurrent(facts->ref)) return;
  // A client that sees a step may request a trace: the job must be RUNNING before its first step is shown.
  if (jobs_.at(facts->ref.job).job.state() == v1::JOB_STATE_STARTING && facts->AllReady()) {
    const AttemptRef ref = facts->ref;
    std::vector<v1::Job> changed;
    Advance(ref.job, &changed);
    StoreReported(std::move(changed));
    facts = FactsOf(ref);
    if (facts == nullptr || !IsCurrent(ref)) return;
  }
  facts->stepped = facts->stepped_since_attached = true;
  facts->launches.AllAnswered();
  LiveJob& live = jobs_.at(facts->ref.job);
  const v1::StepReport before = live.job.last_step();
  const int64_t newest = live.job.ledger().newest_step();
  if (!TakeStep(step, &live.job)) return;
  facts->pace.Take(before, step, lease_.now());
  MoveStep(before, step, ledger_date_.Now(), &live.job);
  if (parts_.meters != nullptr) parts_.meters->Stepped(live.job, before.step(), newest, parts_.clock->Wall());
  TakeCounted(step, &live.job);
  live.progressed = true;
  if (TakeSkipped(step, parts_.clock->Wall(), &live.job)) {
    MarkUnsaved(&live);
    if (const std::optional<int64_t> omitted = facts->skips_line.Take(lease_.now()))
      LogInfo("step skipped job=%s attempt=%d step=%d first_sample=%d end_sample=%d omitted=%d",
              facts->ref.job, facts->ref.attempt, step.step(), step.bad_step().first_sample(),
              step.bad_step().end_sample(), *omitted);
    parts_.board->Publish(Shown(live));
  }
  KeepWarnings(step, &live);
  parts_.board->PublishStep(live.job);
}

// Stored before it is published: a report arrives once, and a revision must not be used for two different
// states.
void Reconciler::KeepWarnings(const v1::StepReport& step, LiveJob* live) {
  if (step.warnings().empty()) return;
  v1::Job updated = live->job;
  if (!TakeWarnings(step, parts_.clock->Wall(), &updated)) return;
  const absl::Status stored = parts_.store->Update(updated);
  if (!stored.ok() && !Leads()) return;
  Adopt(live, std::move(updated), std::string(stored.message()));
}

// Does not wait for the tick's verdict: a save proves that all ranks run, and the job's history must show
// them in this order.
void Reconciler::ApplyReady(const AttemptFacts& facts, const LiveJob& live) {
  absl::StatusOr<v1::Job> next = After(live, JobEvent::kReady, RunningReason(facts));
  if (next.ok()) StoreReported({*std::move(next)});
}

// Stored within a second, like steps; the agent repeats it if the coordinator dies first.
void Reconciler::TakeCheckpoint(const std::string& node, const v1::SavedCheckpoint& saved,
                                AttemptFacts* facts) {
  const AttemptRef& ref = facts->ref;
  if (!IsCurrent(ref)) return;
  LiveJob& live = jobs_.at(ref.job);
  if (!CanHaveSaved(saved, live.job)) return RefuseCheckpoint(node, saved.step(), facts);
  const bool exports = !saved.format().empty();
  if (exports && std::exchange(facts->exported, true)) return;
  if (live.job.state() == v1::JOB_STATE_STARTING) ApplyReady(*facts, live);
  if (!TakeSaved(saved, parts_.clock->Wall(), &live.job)) return;
  PacedLine* const line = saved.error().empty() ? &facts->saves_line : &facts->failed_saves_line;
  // An attempt exports once, so this line needs no limit.
  if (const auto omitted = exports ? std::optional<int64_t>(0) : line->Take(lease_.now()))
    LogInfo("checkpoint reported job=%s attempt=%d step=%d seconds=%.1f omitted=%d error=%s", ref.job,
            ref.attempt, saved.step(), saved.seconds(), *omitted, saved.error());
  MoveSave(saved, ledger_date_.Now(), &live.job);
  MarkUnsaved(&live);
  parts_.board->Publish(Shown(live));
}

// One log line per attempt: a node that forges checkpoints can report any number of them.
void Reconciler::RefuseCheckpoint(const std::string& node, int64_t step, AttemptFacts* facts) {
  if (parts_.meters != nullptr) parts_.meters->RefusedFromAgent("rank");
  if (!std::exchange(facts->refused_checkpoint, true))
    LogWarning("rejected a checkpoint of an invalid step node=%s job=%s attempt=%d step=%d", node,
               facts->ref.job, facts->ref.attempt, step);
}

void Reconciler::TakeRankZeroReady(const std::string& node, const v1::RankReady& ready, AttemptFacts* facts) {
  const AttemptRef& ref = facts->ref;
  if (!IsCurrent(ref)) return;
  LiveJob& live = jobs_.at(ref.job);
  const v1::RestoredCheckpoint* restored = ready.has_restored() ? &ready.restored() : nullptr;
  if (restored != nullptr && !CanHaveRestored(*restored, live.job))
    return RefuseCheckpoint(node, restored->step(), facts);
  if (!TakeStart(restored, parts_.clock->Wall(), &live.job)) return;
  LogInfo("attempt started job=%s attempt=%d after_step=%d path=%s", ref.job, ref.attempt,
          live.job.restored().step(), live.job.restored().path());
  MoveLoad(ready.restored(), ledger_date_.Now(), &live.job);
  MarkUnsaved(&live);
  parts_.board->Publish(Shown(live));
}

void Reconciler::TakeRankZeroExit(const AttemptFacts& facts, const v1::RankExit& exit) {
  if (!IsCurrent(facts.ref)) return;
  LiveJob& live = jobs_.at(facts.ref.job);
  // The previous coordinator may have died before it stored the last steps.
  if (exit.has_last_report()) {
    const v1::StepReport before = live.job.last_step();
    if (TakeStep(exit.last_report(), &live.job))
      MoveStep(before, exit.last_report(), ledger_date_.Now(), &live.job);
    TakeWarnings(exit.last_report(), parts_.clock->Wall(), &live.job);
  }
  TakeCounted(exit, &live.job);
  MarkUnsaved(&live);
}

// A position that arrives after steps have resumed is ignored.
void Reconciler::TakeRankPosition(const v1::RankUpdate& update, const AttemptFacts& facts) {
  if (!IsCurrent(facts.ref)) return;
  LiveJob& live = jobs_.at(facts.ref.job);
  if (live.job.stalled_since_unix_nanos() == 0) return;
  if (!TakePosition(update.rank(), update.position().position(), &live.job)) return;
  live.new_positions = true;
  MarkUnsaved(&live);
}

void Reconciler::OnReport(const std::string& node, const v1::Stopped& stopped) {
  events_.Push(
      [this, node, ref = AttemptRef{stopped.job_id(), stopped.attempt()}, memory = stopped.memory()] {
        if (AttemptFacts* facts = FactsOf(ref)) facts->TakeStopped(node, memory);
      });
}

void Reconciler::OnReport(const std::string& node, const v1::ComputeTimes& times) {
  events_.PushLowPriority([this, node, times] { TakeComputeTimes(node, times); });
}

void Reconciler::TakeComputeTimes(const std::string& node, const v1::ComputeTimes& times) {
  AttemptFacts* facts = FactsOf(AttemptRef{times.job_id(), times.attempt()});
  if (facts == nullptr || !IsCurrent(facts->ref)) return;
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
void Reconciler::ShowSlowRanks() {
  for (auto& [ref, facts] : attempts_) {
    if (!IsCurrent(ref) || lease_.now() - facts.scored < kScoreEvery || !facts.compute.TakeChanged())
      continue;
    facts.scored = lease_.now();
    LiveJob& live = jobs_.at(ref.job);
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

void Reconciler::AttemptFailed(const std::string& node, const AttemptRef& ref, const std::string& what) {
  events_.Push([this, node, ref, what] {
    AttemptFacts* facts = FactsOf(ref);
    if (facts != nullptr && facts->PartOf(node) != nullptr && facts->fault.empty()) facts->fault = what;
  });
}

}  // namespace fsdpd
