// A job's way through here: Submitted() queues it, PlaceQueued() finds nodes, Launch() stores that it starts
// and SendLaunch() puts the order into each agent's stream. Told() takes what agents say of ranks; Advance()
// asks the verdict what that means, and stops, retries or ends the job.
#include "coordinator/reconciler.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <future>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "coordinator/job_machine.h"
#include "coordinator/rank_stands.h"

namespace fsdpd {
namespace {

// A step report of 16 jobs of 2,000 agents each fits many times; one agent's burst after a reconnect does
// too.
constexpr size_t kMaxEvents = 1 << 16;
// Between SIGTERM and SIGKILL for ranks whose job failed or ended.
constexpr int64_t kStopGraceMs = 10000;
// A stop is sent again while its node has not answered.
constexpr absl::Duration kStopRepeat = absl::Seconds(5);
// How long an ended job's slots wait for an agent that never says "stopped".
constexpr absl::Duration kDrainLimit = absl::Seconds(30);
constexpr absl::Duration kSaveRestEvery = absl::Seconds(1);

}  // namespace

Reconciler::Reconciler(ReconcilerOptions options, Parts parts)
    : options_(options),
      parts_(std::move(parts)),
      events_(kMaxEvents),
      lease_(options_.reattach_grace, options_.tick, parts_.clock->Now()) {}

Reconciler::~Reconciler() { Stop(); }

absl::Status Reconciler::Load() {
  FSDPD_ASSIGN_OR_RETURN(std::vector<v1::Job> jobs, parts_.store->LiveJobs());
  for (v1::Job& job : jobs) {
    parts_.board->Publish(job);
    if (job.state() == v1::JOB_STATE_QUEUED) {
      queue_.emplace(job.create_unix_nanos(), job.id());
    } else {
      const AttemptRef ref = {job.id(), job.attempt()};
      AttemptFacts& facts = attempts_[ref] = AttemptFacts(job, /*recovered=*/true);
      facts.pace.WaitFrom(lease_.now());
      if (job.state() == v1::JOB_STATE_STOPPING || job.state() == v1::JOB_STATE_CANCELLING) {
        BeginStop(&facts, kStopGraceMs, job.reason());
      } else {
        parts_.rendezvous->Open(ref);
      }
    }
    LogInfo("job loaded job=%s state=%s attempt=%d", job.id(), ShortName(job.state()), job.attempt());
    LiveJob& live = jobs_[job.id()];
    if (job.state() == v1::JOB_STATE_QUEUED && job.attempt() > 0)
      live.not_before = lease_.now() + RetryDelay(job.attempt());
    live.job = std::move(job);
  }
  return absl::OkStatus();
}

void Reconciler::Start() {
  thread_ = std::thread([this] {
    while (!events_.closed()) RunOnce(options_.tick);
  });
}

void Reconciler::Stop() {
  events_.Close();
  if (thread_.joinable()) thread_.join();
}

void Reconciler::RunOnce(absl::Duration wait) {
  const std::deque<EventQueue::Event> events = events_.Take(wait);
  BeginTick();
  for (const EventQueue::Event& event : events) event();
  ShowStands();
  parts_.nodes->EndSilentStreams(lease_);
  ReadPresence();
  AdvanceJobs();
  TendStops();
  PlaceQueued();
  SaveRest();
  std::map<std::string, int> free_slots;
  for (const NodeSlots& node : SlotsNow()) free_slots[node.name] = static_cast<int>(node.free_devices.size());
  parts_.nodes->SetFreeSlots(free_slots);
}

// --- Events ------------------------------------------------------------------------------------------------

void Reconciler::Submitted(v1::Job job) {
  events_.Push([this, job = std::move(job)] {
    queue_.emplace(job.create_unix_nanos(), job.id());
    jobs_[job.id()].job = job;
    LogInfo("job submitted job=%s name=%s", job.id(), job.spec().name());
  });
}

absl::StatusOr<v1::Job> Reconciler::Cancel(const std::string& id, const std::string& reason,
                                           int64_t grace_ms) {
  auto answer = std::make_shared<std::promise<absl::StatusOr<v1::Job>>>();
  std::future<absl::StatusOr<v1::Job>> decided = answer->get_future();
  const absl::Status stopping =
      absl::UnavailableError("the coordinator is stopping; the job was not cancelled");
  const bool pushed = events_.Push([this, id, reason, grace_ms, answer] {
    TakeCancel(id, reason, grace_ms, [&](absl::StatusOr<v1::Job> job) { answer->set_value(std::move(job)); });
  });
  if (!pushed) return stopping;
  answer
      .reset();  // An event that is dropped with the queue breaks the promise instead of leaving us waiting.
  try {
    return decided.get();
  } catch (const std::future_error&) {
    return stopping;
  }
}

void Reconciler::TakeCancel(const std::string& id, const std::string& reason, int64_t grace_ms,
                            const std::function<void(absl::StatusOr<v1::Job>)>& answer) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return answer(parts_.store->Get(id));
  LiveJob& live = it->second;
  if (live.job.state() != v1::JOB_STATE_CANCELLING) {
    const bool queued = live.job.state() == v1::JOB_STATE_QUEUED;
    const std::string words = absl::StrCat(queued ? "cancelled before it was launched" : "stopping the ranks",
                                           reason.empty() ? "" : ": ", reason);
    absl::Status cancelled = Commit(&live, JobEvent::kCancel, words);
    // A queued job has nothing to stop, and would be launched by a coordinator that forgot the cancel.
    if (!cancelled.ok() && !queued) cancelled = CommitUnstored(&live, JobEvent::kCancel, words, cancelled);
    if (!cancelled.ok()) return answer(cancelled);
  }
  answer(Shown(live));
  if (live.job.state() == v1::JOB_STATE_CANCELLING) {
    // A second cancel may shorten the grace, never lengthen it.
    AttemptFacts* facts = FactsOf(live.job);
    const bool shorter = !facts->stop.has_value() || grace_ms < facts->stop->grace_ms;
    if (shorter) BeginStop(facts, grace_ms, reason.empty() ? "cancelled" : reason);
  }
  ForgetIfEnded(id);
}

void Reconciler::Attached(const v1::Register& info, int64_t epoch) {
  events_.Push([this, info, epoch] { TakeAttached(info, epoch); });
}

void Reconciler::TakeAttached(const v1::Register& info, int64_t epoch) {
  const std::string& node = info.node();
  attached_[node] = epoch;
  std::map<AttemptRef, std::set<int>> hosted;
  for (const v1::HostedAttempt& attempt : info.hosted()) {
    hosted[{attempt.job_id(), attempt.attempt()}].insert(attempt.ranks().begin(), attempt.ranks().end());
  }
  const size_t hosts = hosted.size();
  for (auto& [ref, facts] : attempts_) {
    NodePart* part = facts.PartOf(node);
    if (part == nullptr) continue;
    const auto it = hosted.find(ref);
    facts.TakeAttached(node, it == hosted.end() ? std::set<int>() : it->second, lease_.now());
    if (it != hosted.end()) hosted.erase(it);
    if (facts.stop.has_value()) {
      SendStop(facts, *part);
    } else if (!part->launched && IsCurrent(ref)) {
      SendLaunch(jobs_.at(ref.job).job, part);
    }
  }
  // Unwanted ones are normal after a restart: agents name an attempt for a while after its end.
  LogInfo("agent attached node=%s slots=%d hosted_attempts=%d unwanted=%d", node, info.slots(), hosts,
          hosted.size());
  for (const auto& [ref, ranks] : hosted) StopUnknown(info, ref);
}

// An attempt that is hosted there and should not be: it ended while the node was away, or is of another
// cluster.
void Reconciler::StopUnknown(const v1::Register& info, const AttemptRef& ref) {
  NodePart part;
  part.node = info.node();
  part.launched = part.attached = true;
  if (IsCurrent(ref)) {  // Wanted, but on other nodes.
    AttemptFacts elsewhere;
    elsewhere.ref = ref;
    elsewhere.stop = StopOrder{kStopGraceMs, "placed on other nodes"};
    return SendStop(elsewhere, part);
  }
  // Which devices it uses is not said: none is free until it is gone.
  for (int device = 0; device < info.slots(); ++device) part.devices.push_back(device);
  AttemptFacts& facts = attempts_[ref];
  facts.ref = ref;
  facts.parts.push_back(part);
  BeginStop(&facts, kStopGraceMs, "the attempt has ended");
}

void Reconciler::Told(const std::string& node, v1::RankUpdate update, int64_t sent_unix_nanos) {
  const int64_t happened = update.exit().unix_nanos();
  const bool stamped = happened != 0 && sent_unix_nanos != 0;
  const absl::Duration age =
      absl::Nanoseconds(stamped ? std::max<int64_t>(0, sent_unix_nanos - happened) : 0);
  events_.Push([this, node, update = std::move(update), received = parts_.clock->Now(), age] {
    TakeUpdate(node, update, received, age);
  });
}

void Reconciler::TakeUpdate(const std::string& node, const v1::RankUpdate& update, absl::Time received,
                            absl::Duration age) {
  AttemptFacts* facts = FactsOf(AttemptRef{update.job_id(), update.attempt()});
  if (facts == nullptr) return;  // An older attempt, or a repeat about one that has ended.
  bool taken = true;
  switch (update.event_case()) {
    case v1::RankUpdate::kReady:
      taken = facts->TakeReady(node, update.rank());
      break;
    case v1::RankUpdate::kExit:
      taken =
          facts->TakeExit(node, update.rank(), update.exit(), lease_.now(), lease_.now() - received + age);
      break;
    case v1::RankUpdate::kStep:
      if (update.rank() == 0) TakeStepReport(node, facts, update.step());
      break;
    case v1::RankUpdate::kStand:
      taken = TakeRankStand(node, update, *facts);
      break;
    case v1::RankUpdate::EVENT_NOT_SET:
      break;
  }
  const bool unwanted = facts->ranks().empty();  // It came with a registration and is being stopped.
  if (!taken && !unwanted) {
    LogWarning("agent speaks of a rank that it does not host node=%s job=%s rank=%d", node, update.job_id(),
               update.rank());
  }
}

void Reconciler::TakeStepReport(const std::string& node, AttemptFacts* facts, const v1::StepReport& step) {
  const NodePart* part = facts->PartOfRank(0);
  if (part == nullptr || part->node != node || !IsCurrent(facts->ref)) return;
  facts->stepped = true;
  LiveJob& live = jobs_.at(facts->ref.job);
  const v1::StepReport before = live.job.last_step();
  if (!TakeStep(step, &live.job)) return;
  facts->pace.Take(before, step, lease_.now());
  live.unsaved = true;
  parts_.board->PublishStep(Shown(live));
}

// An answer that comes when steps go on is of no use any more.
bool Reconciler::TakeRankStand(const std::string& node, const v1::RankUpdate& update,
                               const AttemptFacts& facts) {
  const NodePart* part = facts.PartOfRank(update.rank());
  if (part == nullptr || part->node != node) return false;
  if (!IsCurrent(facts.ref)) return true;
  LiveJob& live = jobs_.at(facts.ref.job);
  if (live.job.stalled_since_unix_nanos() != 0 && TakeStand(update.rank(), update.stand().where(), &live.job))
    live.unsaved = live.new_stands = true;
  return true;
}

void Reconciler::Told(const std::string& node, const v1::Stopped& stopped) {
  events_.Push([this, node, ref = AttemptRef{stopped.job_id(), stopped.attempt()}] {
    if (AttemptFacts* facts = FactsOf(ref)) facts->TakeStopped(node);
  });
}

void Reconciler::Fault(const AttemptRef& ref, const std::string& what) {
  events_.Push([this, ref, what] {
    AttemptFacts* facts = FactsOf(ref);
    if (facts != nullptr && facts->fault.empty()) facts->fault = what;
  });
}

// --- The tick ----------------------------------------------------------------------------------------------

void Reconciler::BeginTick() {
  const absl::Duration still = lease_.BeginTick(parts_.clock->Now());
  if (still == absl::ZeroDuration()) return;
  for (auto& [ref, facts] : attempts_) facts.WaitAgain(lease_.now());
  LogWarning("the coordinator stood still for %s; agents have %s to come back", absl::FormatDuration(still),
             absl::FormatDuration(options_.reattach_grace));
}

void Reconciler::ReadPresence() {
  views_.clear();
  for (NodeView& view : parts_.nodes->Snapshot()) {
    const std::string name = view.info.node();
    views_.emplace(name, std::move(view));
  }
}

Presence Reconciler::PresenceAt(const std::string& node) const {
  const auto it = views_.find(node);
  if (it != views_.end() && it->second.connected) return Presence::kConnected;
  const absl::Time heard = it == views_.end() ? absl::InfinitePast() : it->second.last_seen;
  return lease_.Expired(heard) ? Presence::kLost : Presence::kAway;
}

void Reconciler::AdvanceJobs() {
  std::vector<std::string> launched;
  for (const auto& [id, live] : jobs_) {
    if (live.job.state() != v1::JOB_STATE_QUEUED) launched.push_back(id);
  }
  for (const std::string& id : launched) Advance(id);
}

void Reconciler::Advance(const std::string& id) {
  LiveJob& live = jobs_.at(id);
  AttemptFacts* facts = FactsOf(live.job);
  FSDPD_CHECK(facts != nullptr);
  const auto presence = [this](const std::string& node) { return PresenceAt(node); };
  const Verdict verdict = Judge(live.job, *facts, presence, lease_.now(), options_.verdict);
  if (!verdict.event.has_value()) return SayWhetherItSteps(&live, facts);
  const Edit edit = [&](v1::Job* job) {
    if (verdict.failure.has_value()) *job->mutable_failure() = *verdict.failure;
    if (IsEnded(job->state())) job->set_end_unix_nanos(EndOf(*job, *facts));
  };
  absl::Status stored = Commit(&live, *verdict.event, verdict.reason, edit);
  // What is left of a failed attempt is stopped, and shown so, whatever the disk says: its ranks may hang.
  if (!stored.ok() && *verdict.event == JobEvent::kFail)
    stored = CommitUnstored(&live, *verdict.event, verdict.reason, stored, edit);
  if (!stored.ok()) return;  // The next tick judges again.
  if (*verdict.event == JobEvent::kRetry) live.not_before = lease_.now() + verdict.retry_after;
  // A finished attempt is stopped too: its slots are free once the agents confirm that nothing is left.
  if (*verdict.event == JobEvent::kFail || *verdict.event == JobEvent::kFinish) {
    BeginStop(facts, kStopGraceMs, verdict.reason);
  }
  ForgetIfEnded(id);
}

// Ranks answer together: once a tick, however many they are.
void Reconciler::ShowStands() {
  for (auto& [id, live] : jobs_) {
    if (std::exchange(live.new_stands, false)) parts_.board->Replace(Shown(live));
  }
}

// A stall is told, with where the ranks stand, and nothing is done about it: who causes it is not known here.
void Reconciler::SayWhetherItSteps(LiveJob* live, AttemptFacts* facts) {
  const v1::Job& job = live->job;
  const bool up = job.state() == v1::JOB_STATE_STARTING || job.state() == v1::JOB_STATE_RUNNING;
  if (!up || PresenceAt(facts->PartOfRank(0)->node) != Presence::kConnected) return;
  const bool stalled = facts->pace.Stalled(lease_.now()), told = job.stalled_since_unix_nanos() != 0;
  const absl::Time since =
      told ? absl::FromUnixNanos(job.stalled_since_unix_nanos()) : parts_.clock->WallOf(facts->pace.since());
  const std::string time = HumanSeconds(absl::ToDoubleSeconds(parts_.clock->Wall() - since));
  std::string words;
  if (stalled && !told) {
    words = absl::StrCat("no step for ", time);
    if (job.has_last_step())
      absl::StrAppend(&words, "; the last one took ", HumanSeconds(job.last_step().step_seconds()));
  } else if (told && !stalled && facts->stepped) {
    words = absl::StrCat("steps go on after ", time, " without one");
  } else {
    return;
  }
  const absl::Status stored = Commit(live, JobEvent::kNote, words, [&](v1::Job* edited) {
    edited->set_stalled_since_unix_nanos(stalled ? absl::ToUnixNanos(since) : 0);
    edited->clear_stands();
  });
  // If it could not be stored, the next tick says it again.
  if (stored.ok() && stalled) SendLocate(*facts, words);
}

void Reconciler::TendStops() {
  const absl::Time now = lease_.now();
  const auto presence = [this](const std::string& node) { return PresenceAt(node); };
  for (auto it = attempts_.begin(); it != attempts_.end();) {
    AttemptFacts& facts = it->second;
    const bool current = IsCurrent(it->first);
    const bool overdue = now - facts.stop_since > kDrainLimit && !facts.ranks().empty() && facts.AllExited();
    if (!current && (IsGone(facts, presence) || overdue)) {
      if (!IsGone(facts, presence))
        LogWarning("no agent confirmed the end of job=%s attempt=%d", it->first.job, it->first.attempt);
      parts_.rendezvous->Close(it->first);
      it = attempts_.erase(it);
      continue;
    }
    if (facts.stop.has_value() && now - facts.stop->sent >= kStopRepeat) {
      facts.stop->sent = now;
      for (const NodePart& part : facts.parts) SendStop(facts, part);
    }
    ++it;
  }
}

void Reconciler::SaveRest() {
  const absl::Time now = lease_.now();
  if (now - rest_saved_ < kSaveRestEvery) return;
  rest_saved_ = now;
  std::vector<const v1::Job*> unsaved;
  for (const auto& [id, live] : jobs_) {
    if (live.unsaved) unsaved.push_back(&live.job);
  }
  if (unsaved.empty() || !parts_.store->UpdateAll(unsaved).ok()) return;
  for (auto& [id, live] : jobs_) {
    live.unsaved = false;
    if (live.not_on_disk.empty()) continue;
    // Watchers are told that it is, which is a change of what they see.
    live.not_on_disk.clear();
    live.job.set_revision(live.job.revision() + 1);
    live.unsaved = true;
    parts_.board->Publish(live.job);
  }
}

// --- Acts --------------------------------------------------------------------------------------------------

absl::Status Reconciler::Commit(LiveJob* live, JobEvent event, const std::string& reason, const Edit& edit) {
  v1::Job next = live->job;
  FSDPD_RETURN_IF_ERROR(Apply(event, reason, parts_.clock->Wall(), &next));
  if (edit) edit(&next);
  const absl::Status stored = parts_.store->Update(next);
  if (!stored.ok()) {
    const std::string error = std::string(stored.message());
    if (error != last_store_error_) {
      LogError("cannot store a change, trying again job=%s error=%s", next.id(), stored.ToString());
    }
    last_store_error_ = error;
    return stored;
  }
  last_store_error_.clear();
  Adopt(live, std::move(next));
  return absl::OkStatus();
}

absl::Status Reconciler::CommitUnstored(LiveJob* live, JobEvent event, const std::string& reason,
                                        const absl::Status& why, const Edit& edit) {
  v1::Job next = live->job;
  FSDPD_RETURN_IF_ERROR(Apply(event, reason, parts_.clock->Wall(), &next));
  if (edit) edit(&next);
  Adopt(live, std::move(next), std::string(why.message()));
  return absl::OkStatus();
}

// That a change is not on disk is for those who look now; stored, it would be a lie for ever.
v1::Job Reconciler::Shown(const LiveJob& live) {
  v1::Job job = live.job;
  if (!live.not_on_disk.empty())
    job.set_reason(absl::StrCat(job.reason(), "; not on disk yet: ", live.not_on_disk));
  return job;
}

void Reconciler::Adopt(LiveJob* live, v1::Job next, const std::string& not_on_disk) {
  const std::pair<int64_t, std::string> place = {next.create_unix_nanos(), next.id()};
  if (next.state() == v1::JOB_STATE_QUEUED) {
    queue_.insert(place);
  } else {
    queue_.erase(place);
  }
  LogInfo("job %s -> %s job=%s attempt=%d reason=%s", ShortName(live->job.state()), ShortName(next.state()),
          next.id(), next.attempt(), next.reason());
  live->job = std::move(next);
  live->unsaved = !not_on_disk.empty();
  live->not_on_disk = not_on_disk;
  parts_.board->Publish(Shown(*live));
}

void Reconciler::BeginStop(AttemptFacts* facts, int64_t grace_ms, const std::string& reason) {
  parts_.rendezvous->Close(facts->ref);
  facts->stop = StopOrder{grace_ms, reason, lease_.now()};
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
  if (it != jobs_.end() && IsEnded(it->second.job.state())) jobs_.erase(it);
}

// --- Looking things up -------------------------------------------------------------------------------------

AttemptFacts* Reconciler::FactsOf(const AttemptRef& ref) {
  const auto it = attempts_.find(ref);
  return it == attempts_.end() ? nullptr : &it->second;
}

// An agent that was away tells of an end that may be long ago.
int64_t Reconciler::EndOf(const v1::Job& job, const AttemptFacts& facts) const {
  const absl::Time ended = std::min(facts.LastEnd(), parts_.clock->Now());
  return std::max(job.start_unix_nanos(), absl::ToUnixNanos(parts_.clock->WallOf(ended)));
}

bool Reconciler::IsCurrent(const AttemptRef& ref) const {
  const auto it = jobs_.find(ref.job);
  return it != jobs_.end() && it->second.job.attempt() == ref.attempt &&
         it->second.job.state() != v1::JOB_STATE_QUEUED;
}

}  // namespace fsdpd
