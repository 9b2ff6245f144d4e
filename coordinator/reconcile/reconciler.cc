// The path of a job through the reconciler: Submitted() queues it (agent_events.cc), PlaceQueued() finds
// nodes (placing.cc), Launch() stores that it starts, and SendLaunch() queues the order on each agent's
// stream. OnReport() takes agents' reports about ranks (agent_events.cc). Advance() asks the verdict for
// their effect, and stops, retries or ends the job.
#include "coordinator/reconcile/reconciler.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "coordinator/attempt/failure_policy.h"
#include "coordinator/attempt/job_pause.h"
#include "coordinator/attempt/slot_count.h"
#include "coordinator/job/bad_steps.h"
#include "coordinator/job/job_checkpoints.h"
#include "coordinator/job/job_ledger.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/metrics/meters.h"
#include "coordinator/nodes/known_node.h"

namespace fsdpd {
namespace {

// Fits many times a step report of 16 jobs from each agent that a coordinator is sized for (kMaxWorld), and
// the burst of one agent after a reconnect.
constexpr size_t kMaxQueued = 1 << 16;
// A stop is resent until its node answers.
constexpr absl::Duration kStopRepeat = absl::Seconds(5);
// How long an ended job's slots wait for an agent that never confirms the stop.
constexpr absl::Duration kUnconfirmedStopLimit = absl::Seconds(30);
// Longest pause after a tick.
constexpr std::chrono::milliseconds kLongestRest(50);
constexpr absl::Duration kSaveRestEvery = absl::Seconds(1);
constexpr absl::Duration kStoreErrorPause = absl::Seconds(10);

// All steps are done, and the rest may take long: a checkpoint, or an export of the model.
bool WritesFinalOutput(const v1::Job& job) {
  const v1::JobSpec spec = FilledSpec(job);
  const bool writes = spec.checkpoint().on_end() || !spec.checkpoint().export_().empty();
  return writes && job.last_step().step() == spec.train().steps();
}

// Remaining grace of a cancel or pause that a previous process of the coordinator accepted. Never more than
// the original grace, because the date may have been set back since.
int64_t GraceLeftMs(int64_t given_ms, int64_t at_unix_nanos, absl::Time wall) {
  const int64_t passed_ms = (absl::ToUnixNanos(wall) - at_unix_nanos) / 1'000'000;
  return std::max<int64_t>(0, given_ms - std::max<int64_t>(0, passed_ms));
}

// Kinds of events that begin or end an attempt.
bool IsAttemptEvent(v1::EventKind kind) {
  return kind == v1::EVENT_KIND_LAUNCHED || kind == v1::EVENT_KIND_SUCCEEDED ||
         kind == v1::EVENT_KIND_RANKS_EXITED;
}

// Adds the cause and the node to the event of a change.
void AddCause(v1::Job* changed) {
  v1::Job::Event* event = changed->mutable_events(changed->events_size() - 1);
  const v1::EventKind kind = event->kind();
  if (kind == v1::EVENT_KIND_ATTEMPT_FAILED || kind == v1::EVENT_KIND_FAILED) {
    event->set_node(changed->failure().node());
    event->set_cause(changed->failure().cause());
  }
  const std::string& drained_from = changed->pause().drained_from();
  if ((kind == v1::EVENT_KIND_PAUSED || kind == v1::EVENT_KIND_RANKS_EXITED) && !drained_from.empty())
    event->set_node(drained_from);
  // An attempt on a single node belongs to that node's history.
  if (event->node().empty() && changed->placements_size() == 1 && IsAttemptEvent(kind))
    event->set_node(changed->placements(0).node());
  if (kind == v1::EVENT_KIND_PAUSED && !changed->pause().preempted_by().empty())
    event->set_kind(v1::EVENT_KIND_PREEMPTED);
  if (kind == v1::EVENT_KIND_PAUSED && !drained_from.empty()) event->set_kind(v1::EVENT_KIND_DRAINED);
}

}  // namespace

Reconciler::Reconciler(ReconcilerOptions options, Parts parts)
    : options_(options),
      parts_(std::move(parts)),
      ledger_date_(parts_.clock),
      cordons_(parts_.store),
      events_(kMaxQueued),
      lease_(options_.reattach_grace, options_.tick, parts_.clock->Now()) {}

Reconciler::~Reconciler() { Stop(); }

absl::Status Reconciler::Load() {
  FSDPD_RETURN_IF_ERROR(cordons_.Load());
  // Fatal, as for jobs: without these rows the next write would drop measurements and unconfirmed jobs.
  FSDPD_ASSIGN_OR_RETURN(const v1::ListNodesResponse nodes, parts_.store->Nodes());
  preflights_.Load(nodes);
  absl::Time date = parts_.clock->Wall();
  for (const v1::Node& node : nodes.nodes())
    date = std::max(date, absl::FromUnixNanos(node.last_seen_unix_nanos()));
  for (const v1::Node& node : nodes.nodes()) {
    const NodeView view = ViewOf(node, date, *parts_.clock);
    parts_.nodes->Restore(view);
    nodes_remembered_[node.name()] = {
        -1, false, false, node.preflight().unix_nanos(), node.preflight().accepted(),
        {}, 0,     {},    view.revoked_serial,           node.in_preflight()};
    LoadStanding(node);
    LoadMeasurement(node);
  }
  FSDPD_ASSIGN_OR_RETURN(std::vector<v1::Job> jobs, parts_.store->LiveJobs());
  old_forgotten_ = lease_.now();  // Agents that should forget these jobs too must reconnect first.
  for (v1::Job& job : jobs) {
    ResumeLedger(ledger_date_.Now(), &job);
    if (job.deleted_hosts().empty()) {
      const std::vector<std::string> named = DeletedHostsIn(job.reason());
      job.mutable_deleted_hosts()->Assign(named.begin(), named.end());
    }
    parts_.board->Publish(job);
    if (job.state() == v1::JOB_STATE_QUEUED) queue_.insert(PlaceInQueue(job));
    index_.Set(job);
    if (HasAttempt(job.state())) LoadAttempt(job);
    LogInfo("job loaded job=%s state=%s attempt=%d", job.id(), ShortName(job.state()), job.attempt());
    LiveJob& live = jobs_[job.id()];
    live.awaits_agents = !HasAttempt(job.state());
    live.newest_elsewhere = job.attempt() + kMaxAttemptsAhead;
    if (job.state() == v1::JOB_STATE_QUEUED && job.attempt() > 0)
      live.not_before = lease_.now() + RetryDelay(job);
    live.job = std::move(job);
  }
  return absl::OkStatus();
}

void Reconciler::LoadAttempt(const v1::Job& job) {
  AttemptFacts& facts = OpenAttempt(job, /*recovered=*/true);
  facts.pace.WaitFrom(lease_.now());
  const bool cancelling = job.state() == v1::JOB_STATE_CANCELLING && job.has_cancellation();
  const bool pausing = job.state() == v1::JOB_STATE_PAUSING;
  // The attempt failed before: its remaining ranks have nothing to save together.
  const bool failed = job.has_failure() && job.failure().attempt() == job.attempt();
  int64_t grace_ms = kStopGraceMs;
  if (cancelling)
    grace_ms =
        GraceLeftMs(job.cancellation().grace_ms(), job.cancellation().unix_nanos(), parts_.clock->Wall());
  if (pausing) grace_ms = GraceLeftMs(job.pause().grace_ms(), job.pause().unix_nanos(), parts_.clock->Wall());
  // Its ranks may be saving now, and a different stop order would make agents end them.
  const bool leaves = pausing || job.state() == v1::JOB_STATE_CANCELLING;
  const bool saves = leaves && !failed && grace_ms > 0 && !FilledSpec(job).checkpoint().dir().empty();
  if (failed) grace_ms = std::min(grace_ms, kStopGraceMs);
  const bool stopping = leaves || job.state() == v1::JOB_STATE_STOPPING;
  if (!stopping || saves) parts_.rendezvous->Open(facts.ref);
  if (stopping) BeginStop(&facts, grace_ms, job.reason(), saves);
}

void Reconciler::Start() {
  thread_ = std::thread([this] {
    while (!events_.closed()) {
      const std::deque<EventQueue::Event> events = events_.Take(options_.tick);
      // Without leadership events are dropped, and their callers get an error.
      if (!Leads()) continue;
      const auto begin = std::chrono::steady_clock::now();
      RunTick(events);
      // Batches work: when thousands of nodes reconnect together, the next tick takes everything that arrived
      // during the pause, and other threads get a core.
      const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
      if (parts_.meters != nullptr) parts_.meters->Ticked(absl::FromChrono(took));
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(took, kLongestRest));
    }
  });
}

void Reconciler::Stop() {
  events_.Close();
  if (!thread_.joinable()) return;
  thread_.join();
  if (!Leads()) return;
  ReadPresence();
  nodes_remembered_at_ = nodes_dated_at_ = last_rest_save_ = progress_saved_ = absl::InfinitePast();
  SaveRest();
  RememberNodes();
}

void Reconciler::RunOnce(absl::Duration wait) { RunTick(events_.Take(wait)); }

void Reconciler::RunTick(const std::deque<EventQueue::Event>& events) {
  BeginTick();
  // Leadership may be lost in any of these: a write blocks until it is known whether it was stored.
  for (const EventQueue::Event& event : events) {
    if (Leads()) event();
  }
  PublishPositions();
  ShowSlowRanks();
  parts_.nodes->EndSilentStreams(lease_);
  ForgetLostNodes();
  ReadPresence();
  AdvanceJobs();
  if (!Leads()) return;
  AdvanceStops();
  full_nodes_ = FullNodes();
  const bool all_noted = AdvanceAwaiting();
  AdvancePreflights();
  AdvanceDrains();
  OpenHealthyNodes();
  PlaceQueued();
  SaveRest();
  RememberNodes();
  if (all_noted) ForgetOldJobs();
  SendForgets();
  std::vector<const NodeView*> heard;
  for (const auto& [name, view] : views_) {
    if (HasReported(view) && measurements_.count(name) == 0 && full_nodes_.count(name) == 0)
      heard.push_back(&view);
  }
  std::vector<HeldDevices> held;
  for (const auto& [ref, facts] : attempts_) {
    for (const NodePart& part : facts.parts) {
      if (!part.stopped) held.emplace_back(part.node, part.devices);
    }
  }
  for (const std::string& id : index_.In(JobIndex::View::kPreflight)) {
    for (const v1::Job::Placement& placement : jobs_.at(id).job.reserved_nodes())
      held.emplace_back(placement.node(), placement.devices());
  }
  parts_.nodes->SetFreeSlots(CountFree(heard, held));
}

// --- The tick ----------------------------------------------------------------------------------------------

void Reconciler::BeginTick() {
  const absl::Duration still = lease_.BeginTick(parts_.clock->Now());
  if (still == absl::ZeroDuration()) return;
  for (auto& [ref, facts] : attempts_) facts.RestartWaits(lease_.now());
  for (auto& [node, measurement] : measurements_) {
    measurement.until += still;
    measurement.lost_at += still;
  }
  LogWarning("coordinator was suspended duration=%s reattach_grace=%s", absl::FormatDuration(still),
             absl::FormatDuration(options_.reattach_grace));
}

void Reconciler::ForgetLostNodes() {
  const auto has_ended = [this](const std::string& job) { return HasEnded(job); };
  for (const std::string& node : parts_.nodes->ForgetLost(lease_, has_ended)) {
    ForgetNode(node);
    LogInfo("removed lost node node=%s", node);
  }
}

void Reconciler::ForgetNode(const std::string& node) {
  attached_.erase(node);
  preflights_.Forget(node);
  unrequested_from_.erase(node);
  bad_times_from_.erase(node);
  refused_until_.erase(node);
  node_failures_.ForgetNode(node);
  healthy_before_.erase(node);
}

void Reconciler::ReadPresence() { parts_.nodes->ReadInto(&views_); }

bool Reconciler::HasReported(const NodeView& view) const {
  const auto it = attached_.find(view.info.node());
  return view.connected && it != attached_.end() && it->second == view.stream_generation;
}

Presence Reconciler::PresenceAt(const std::string& node) const {
  const auto it = views_.find(node);
  if (it != views_.end() && it->second.connected) return Presence::kConnected;
  const absl::Time heard = it == views_.end() ? absl::InfinitePast() : it->second.last_seen;
  if (lease_.Expected(heard)) return Presence::kExpected;
  return lease_.Expired(heard) ? Presence::kLost : Presence::kDisconnected;
}

void Reconciler::AdvanceJobs() {
  // Changes that cannot be stored are retried in the next tick.
  for (const std::string& id : index_.In(JobIndex::View::kResuming)) Requeue(&jobs_.at(id), "").IgnoreError();
  std::vector<v1::Job> notes;
  for (const std::string& id : index_.In(JobIndex::View::kLaunched)) Advance(id, &notes);
  StoreReported(std::move(notes));
}

// Stores changes that require no further action in one write, because thousands of jobs may change when nodes
// disconnect or reconnect together. Jobs that cannot be stored are judged again in the next tick.
void Reconciler::StoreReported(std::vector<v1::Job> notes) {
  if (notes.empty()) return;
  std::vector<const v1::Job*> jobs;
  for (const v1::Job& job : notes) jobs.push_back(&job);
  const std::vector<absl::Status> stored = parts_.store->UpdateAll(jobs);
  for (size_t i = 0; i < notes.size(); ++i) {
    if (!stored[i].ok()) {
      LogNotStored(notes[i].id(), stored[i]);
      continue;
    }
    LiveJob& live = jobs_.at(notes[i].id());
    Adopt(&live, std::move(notes[i]));
  }
}

void Reconciler::Advance(const std::string& id, std::vector<v1::Job>* notes) {
  if (!Leads()) return;
  LiveJob& live = jobs_.at(id);
  AttemptFacts* facts = FactsOf(live.job);
  FSDPD_CHECK(facts != nullptr);
  for (NodePart& part : facts->parts) {
    const auto view = views_.find(part.node);
    part.revoked = view != views_.end() && !view->second.revoked_serial.empty();
  }
  const auto presence = [this](const std::string& node) { return PresenceAt(node); };
  const Verdict verdict =
      Judge(live.job, *facts, presence, lease_.now(), options_.verdict, EarlierAttemptsOf(live.job));
  if (!verdict.event.has_value()) {
    ShortenUselessSave(&live, facts);
    return ReportStall(&live, facts);
  }
  const Edit edit = [&](v1::Job* job) {
    if (verdict.failure.has_value()) *job->mutable_failure() = *verdict.failure;
    // The positions in the failure are newer.
    if (verdict.failure.has_value() && verdict.failure->has_hang()) job->clear_positions();
    if (verdict.failure.has_value() && verdict.failure->has_hang()) MoveHang(verdict.failure->hang(), job);
    if (!verdict.node.empty()) job->mutable_events()->rbegin()->set_node(verdict.node);
    if (verdict.rewinds) NoteExcluded(job);
    if (verdict.rewinds) Rewind(job);
    if (verdict.drained) ExcludeAttempt(job);
    if (verdict.pause.has_value()) KeepPause(*verdict.pause, job);
    if (verdict.unconfirmed.has_value())
      job->mutable_pause()->mutable_unconfirmed()->Assign(verdict.unconfirmed->begin(),
                                                          verdict.unconfirmed->end());
    if (verdict.refused) job->set_refused_launches(job->refused_launches() + 1);
    if (verdict.failure.has_value()) KeepFailedAttempt(job);
    NumberAfter(verdict.number_after, job);
    if (!IsEnded(job->state())) return;
    job->set_end_unix_nanos(EndOf(*job, *facts));
    const absl::Time ended = ledger_date_.Of(std::min(facts->LastEnd(), parts_.clock->Now()));
    EndLedger(std::max(ended, absl::FromUnixNanos(job->start_unix_nanos())), job);
  };
  const bool is_note = *verdict.event == JobEvent::kNote;
  // Ranks have returned, and readers must see that while the store still fails.
  const bool is_urgent = is_note && absl::StartsWith(live.job.reason(), kWaitsForStore);
  if ((is_note && !is_urgent) || *verdict.event == JobEvent::kReady) {
    absl::StatusOr<v1::Job> next = After(live, *verdict.event, verdict.reason, edit);
    if (next.ok()) notes->push_back(*std::move(next));
    return;
  }
  absl::Status stored = Commit(&live, *verdict.event, verdict.reason, edit);
  // The rest of a failed attempt is stopped, and shown as such, even if that cannot be stored: its ranks may
  // hang.
  if (!stored.ok() && (*verdict.event == JobEvent::kFail || is_urgent))
    stored = CommitUnstored(&live, *verdict.event, verdict.reason, stored, edit);
  // Its ranks are gone: readers see that the job waits for nothing else.
  if (!stored.ok() && *verdict.event == JobEvent::kRanksGone) {
    const std::string words = absl::StrCat(kWaitsForStore, verdict.reason);
    if (words != live.job.reason()) CommitUnstored(&live, JobEvent::kNote, words, stored).IgnoreError();
  }
  if (!stored.ok()) return;  // The next tick judges again.
  if (*verdict.event == JobEvent::kRetry) live.not_before = lease_.now() + verdict.retry_after;
  JudgeNodes(live.job, *verdict.event);
  // A finished attempt is stopped too: its slots are free once the agents confirm that nothing is left.
  if (*verdict.event == JobEvent::kFail || *verdict.event == JobEvent::kFinish) {
    BeginStop(facts, kStopGraceMs, verdict.reason);
  }
  ForgetIfEnded(id);
}

// Ranks answer together, so their positions are published once per tick.
void Reconciler::PublishPositions() {
  for (const std::string& id : index_.In(JobIndex::View::kLaunched)) {
    LiveJob& live = jobs_.at(id);
    if (std::exchange(live.new_positions, false)) parts_.board->Replace(Shown(live));
  }
}

// Reports a stall with the positions of the ranks, without any action: steps may just be slow. The verdict
// handles an attempt in which nothing progresses.
void Reconciler::ReportStall(LiveJob* live, AttemptFacts* facts) {
  const v1::Job& job = live->job;
  const bool up = job.state() == v1::JOB_STATE_STARTING || job.state() == v1::JOB_STATE_RUNNING;
  if (!up || PresenceAt(facts->PartOfRank(0)->node) != Presence::kConnected) return;
  const bool stalled = facts->pace.Stalled(lease_.now()) && !WritesFinalOutput(job);
  const bool reported = job.stalled_since_unix_nanos() != 0;
  const absl::Time since = reported ? absl::FromUnixNanos(job.stalled_since_unix_nanos())
                                    : parts_.clock->WallOf(facts->pace.since());
  const std::string time = HumanSeconds(absl::ToDoubleSeconds(parts_.clock->Wall() - since));
  std::string reason;
  if (stalled && !reported) {
    reason = absl::StrCat("no step for ", time);
    if (job.has_last_step())
      absl::StrAppend(&reason, "; the last one took ", HumanSeconds(job.last_step().step_seconds()));
  } else if (reported && !stalled && facts->stepped) {
    reason = absl::StrCat("steps continued after ", time, " without one");
  } else {
    return;
  }
  const absl::Status stored = Commit(live, JobEvent::kNote, reason, [&](v1::Job* edited) {
    edited->set_stalled_since_unix_nanos(stalled ? absl::ToUnixNanos(since) : 0);
    edited->clear_positions();
  });
  // If this could not be stored, the next tick tries again.
  if (stored.ok() && stalled) SendLocate(*facts, reason);
}

// Ranks that save wait for each other's files until their grace is over. Without one of them that cannot
// succeed, so the grace is shortened.
void Reconciler::ShortenUselessSave(LiveJob* live, AttemptFacts* facts) {
  if (!facts->stop.has_value() || !facts->stop->save) return;
  const std::string why =
      WhyNothingIsSaved(*facts, [this](const std::string& node) { return PresenceAt(node); });
  if (why.empty()) return;
  facts->why_unsaved = absl::EndsWith(why, kIsLost) ? absl::StrCat(absl::StripSuffix(why, kIsLost),
                                                                   " was lost before its ranks had saved")
                                                    : why;
  const std::string reason = absl::StrCat("no checkpoint can be saved any more: ", why);
  absl::Status stored = Commit(live, JobEvent::kNote, reason);
  // Even if that cannot be stored: the ranks are already leaving.
  if (!stored.ok()) stored = CommitUnstored(live, JobEvent::kNote, reason, stored);
  if (stored.ok()) BeginStop(facts, std::min(facts->stop->grace_ms, kStopGraceMs), reason);
}

void Reconciler::AdvanceStops() {
  const absl::Time now = lease_.now();
  const auto presence = [this](const std::string& node) { return PresenceAt(node); };
  for (auto it = attempts_.begin(); it != attempts_.end();) {
    AttemptFacts& facts = it->second;
    const bool current = IsCurrent(it->first);
    const bool overdue =
        now - facts.stop_since > kUnconfirmedStopLimit && !facts.ranks().empty() && facts.AllExited();
    if (!current && (IsGone(facts, presence) || overdue)) {
      if (!IsGone(facts, presence))
        LogWarning("end of attempt was not confirmed job=%s attempt=%d", it->first.job, it->first.attempt);
      it = CloseAttempt(it);
      continue;
    }
    if (current && !facts.stop.has_value()) ResendLaunches(&facts);
    if (facts.stop.has_value() && now - facts.stop->sent >= kStopRepeat) {
      facts.stop->sent = now;
      for (const NodePart& part : facts.parts) SendStop(facts, part);
    }
    ++it;
  }
}

Reconciler::Attempts::iterator Reconciler::CloseAttempt(Attempts::iterator it) {
  KeepUnconfirmed(it->second);
  parts_.rendezvous->Close(it->first);
  hosts_.Close(it->first);
  return attempts_.erase(it);
}

void Reconciler::SaveRest() {
  const absl::Time now = lease_.now();
  if (now - last_rest_save_ < kSaveRestEvery) return;
  last_rest_save_ = now;
  const bool progress = now - progress_saved_ >= options_.progress_every;
  if (progress) progress_saved_ = now;
  cordons_.SaveRest();
  if (progress) {
    for (const std::string& id : index_.In(JobIndex::View::kLaunched)) {
      if (LiveJob& live = jobs_.at(id); live.progressed) MarkUnsaved(&live);
    }
  }
  std::vector<LiveJob*> unsaved;
  std::vector<const v1::Job*> jobs;
  for (const std::string& id : unsaved_) {
    LiveJob& live = jobs_.at(id);
    unsaved.push_back(&live);
    jobs.push_back(&live.job);
  }
  if (jobs.empty()) return;
  const std::vector<absl::Status> stored = parts_.store->UpdateAll(jobs);
  for (size_t i = 0; i < jobs.size(); ++i) {
    LiveJob& live = *unsaved[i];
    if (absl::IsOutOfRange(stored[i])) ReportTooLarge(&live, stored[i]);
    if (!stored[i].ok()) {
      LogNotStored(live.job.id(), stored[i]);
      continue;
    }
    live.progressed = false;
    unsaved_.erase(live.job.id());
    if (live.not_on_disk.empty()) continue;
    // Watchers see the end of this error as a change.
    live.not_on_disk.clear();
    live.job.set_revision(live.job.revision() + 1);
    MarkUnsaved(&live);
    parts_.board->Publish(live.job);
  }
}

void Reconciler::MarkUnsaved(LiveJob* live) {
  parts_.store->events().Date(&live->job);
  unsaved_.insert(live->job.id());
}

// --- Actions -----------------------------------------------------------------------------------------------

absl::StatusOr<v1::Job> Reconciler::After(const LiveJob& live, JobEvent event, const std::string& reason,
                                          const Edit& edit) const {
  v1::Job next = live.job;
  FSDPD_RETURN_IF_ERROR(Apply(event, reason, parts_.clock->Wall(), ledger_date_.Now(), &next));
  if (edit) edit(&next);
  parts_.store->events().Date(&next);
  AddCause(&next);
  return next;
}

absl::Status Reconciler::Commit(LiveJob* live, JobEvent event, const std::string& reason, const Edit& edit) {
  FSDPD_ASSIGN_OR_RETURN(v1::Job next, After(*live, event, reason, edit));
  if (const absl::Status stored = parts_.store->Update(next); !stored.ok()) {
    LogNotStored(next.id(), stored);
    return stored;
  }
  Adopt(live, std::move(next));
  return absl::OkStatus();
}

// A full disk fails each job's change in every tick, each with its own message: log at most one per
// kStoreErrorPause.
void Reconciler::LogNotStored(const std::string& id, const absl::Status& why) {
  const absl::Time now = parts_.clock->Now();
  if (now < store_error_logged_ + kStoreErrorPause) return;
  LogError("change was not stored; retrying job=%s error=%s", id, why.ToString());
  store_error_logged_ = now;
}

// The store rejects the job until it is smaller; other jobs are stored meanwhile.
void Reconciler::ReportTooLarge(LiveJob* live, const absl::Status& why) {
  if (live->not_on_disk == why.message()) return;
  live->not_on_disk = std::string(why.message());
  MarkUnsaved(live);
  LogError("job is too large to store job=%s bytes=%d error=%s", live->job.id(), live->job.ByteSizeLong(),
           live->not_on_disk);
  parts_.board->Replace(Shown(*live));
}

absl::Status Reconciler::CommitUnstored(LiveJob* live, JobEvent event, const std::string& reason,
                                        const absl::Status& why, const Edit& edit) {
  if (!Leads()) return why;
  FSDPD_ASSIGN_OR_RETURN(v1::Job next, After(*live, event, reason, edit));
  Adopt(live, std::move(next), std::string(why.message()));
  return absl::OkStatus();
}

// The error is shown to current readers only: once stored, it would be wrong forever.
v1::Job Reconciler::Shown(const LiveJob& live) {
  v1::Job job = live.job;
  if (live.not_on_disk.empty()) return job;
  job.set_store_error(live.not_on_disk);
  job.set_reason(absl::StrCat(job.reason(), "; not on disk yet: ", live.not_on_disk));
  return job;
}

void Reconciler::Adopt(LiveJob* live, v1::Job next, const std::string& not_on_disk) {
  const QueuePlace place = PlaceInQueue(next);
  if (next.state() == v1::JOB_STATE_QUEUED) {
    queue_.insert(place);
  } else {
    queue_.erase(place);
  }
  const std::string from = ShortName(live->job.state()), to = ShortName(next.state());
  LogInfo("job %s job=%s attempt=%d reason=%s", from == to ? to : absl::StrCat(from, " -> ", to), next.id(),
          next.attempt(), next.reason());
  if (parts_.meters != nullptr) parts_.meters->Changed(live->job, next);
  live->job = std::move(next);
  index_.Set(live->job);
  if (not_on_disk.empty()) {
    unsaved_.erase(live->job.id());
    live->progressed = false;
  } else {
    MarkUnsaved(live);
  }
  live->not_on_disk = not_on_disk;
  parts_.board->Publish(Shown(*live));
}

// Ranks that save exchange through the rendezvous which files are written, so it is closed only when they are
// gone.
void Reconciler::BeginStop(AttemptFacts* facts, int64_t grace_ms, const std::string& reason, bool save) {
  if (!save) parts_.rendezvous->Close(facts->ref);
  facts->stop = StopOrder{grace_ms, reason, save, lease_.now()};
  facts->stop_since = std::min(facts->stop_since, lease_.now());
  for (const NodePart& part : facts->parts) SendStop(*facts, part);
}

void Reconciler::SendStop(const AttemptFacts& facts, const NodePart& part) {
  if (part.stopped) return;
  v1::CoordinatorMessage message;
  v1::Stop* stop = message.mutable_stop();
  stop->set_job_id(facts.ref.job);
  stop->set_attempt(facts.ref.attempt);
  stop->set_grace_ms(std::max<int64_t>(1, facts.stop->grace_ms));  // To an agent, 0 means its own default.
  stop->set_reason(facts.stop->reason);
  stop->set_save(facts.stop->save);
  const auto live = jobs_.find(facts.ref.job);
  if (live != jobs_.end()) {
    const v1::Job::Failure& failure = live->second.job.failure();
    if (failure.has_hang() && failure.attempt() == facts.ref.attempt) {
      stop->mutable_hang()->set_rank(failure.rank());
      stop->mutable_hang()->set_verdict(failure.error());
    }
  }
  parts_.nodes->Send(part.node, std::move(message));
}

void Reconciler::SendLocate(const AttemptFacts& facts, const std::string& reason) {
  v1::CoordinatorMessage message;
  message.mutable_locate()->set_job_id(facts.ref.job);
  message.mutable_locate()->set_attempt(facts.ref.attempt);
  message.mutable_locate()->set_reason(reason);
  for (const NodePart& part : facts.parts) parts_.nodes->Send(part.node, message);
}

void Reconciler::ForgetIfEnded(const std::string& id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end() || !IsEnded(it->second.job.state())) return;
  index_.Erase(id);
  unsaved_.erase(id);
  jobs_.erase(it);
}

// --- Lookups -----------------------------------------------------------------------------------------------

AttemptFacts& Reconciler::OpenAttempt(const v1::Job& job, bool recovered) {
  AttemptFacts& facts = attempts_[{job.id(), job.attempt()}] = AttemptFacts(job, recovered);
  hosts_.Open(facts);
  return facts;
}

AttemptFacts* Reconciler::FactsOf(const AttemptRef& ref) {
  const auto it = attempts_.find(ref);
  return it == attempts_.end() ? nullptr : &it->second;
}

// For a job with ranks of earlier attempts only: marks the newest attempt as gone.
AttemptFacts* Reconciler::FactsOfNothing(const v1::Job& job) {
  AttemptFacts& facts = OpenAttempt(job, /*recovered=*/false);
  for (NodePart& part : facts.parts) part.stopped = true;
  return &facts;
}

// An agent that was disconnected may report an end that is long past.
int64_t Reconciler::EndOf(const v1::Job& job, const AttemptFacts& facts) const {
  const absl::Time ended = std::min(facts.LastEnd(), parts_.clock->Now());
  return std::max(job.start_unix_nanos(), absl::ToUnixNanos(parts_.clock->WallOf(ended)));
}

Reconciler::QueuePlace Reconciler::PlaceInQueue(const v1::Job& job) {
  return {-job.spec().priority(), job.create_unix_nanos(), job.id()};
}

bool Reconciler::IsCurrent(const AttemptRef& ref) const {
  const auto it = jobs_.find(ref.job);
  return it != jobs_.end() && it->second.job.attempt() == ref.attempt && HasAttempt(it->second.job.state());
}

}  // namespace fsdpd
