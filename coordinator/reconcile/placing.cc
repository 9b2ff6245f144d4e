// Reconciler: selection of the queued jobs to launch, their plans, and the launch itself.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/attempt/failure_policy.h"
#include "coordinator/attempt/slot_count.h"
#include "coordinator/job/elastic.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/reconcile/reconciler.h"
#include "coordinator/schedule/reservations.h"
#include "coordinator/schedule/waiting.h"

namespace fsdpd {
namespace {

// Limit of new reasons of queued jobs that one tick stores, so that a change at the head of a long queue does
// not stall the tick. A tick visits the whole queue, so the limit grows with it: all reasons are stored
// within 16 ticks.
size_t MaxNotesPerTick(size_t queued) { return std::max<size_t>(200, queued / 16); }
// A queue of up to this length is visited in every tick.
constexpr size_t kShortQueue = 256;
constexpr absl::Duration kLongQueueEvery = absl::Seconds(5);
// Limit of jobs checked for backfill next to the reservations per tick: each check visits all nodes.
constexpr int kMaxLooksPerTick = 100;

constexpr char kAwaitsAgents[] =
    "waiting for agents to reconnect after the coordinator's restart: one may host a newer attempt";

}  // namespace

// The job's requirements and the preferences that follow from its last attempt.
PlaceRequest Reconciler::RequestAgain(const v1::Job& job) {
  PlaceRequest request = RequestOf(job);
  for (const v1::Job::Placement& placement : job.placements()) request.before.insert(placement.node());
  request.avoided = NodeToAvoid(job);
  return request;
}

// Resources that are left in a tick, and the reasons why jobs wait.
struct Reconciler::Placing {
  Reservations reservations;
  RemainingQuotas quotas;
  std::map<v1::Device, int> places = {};  // By kind of device: number of jobs with a place in its queue.
  std::map<std::string, v1::Job::Waiting> waits = {};
  int plans = 0, looks = 0;
  absl::Time wake = absl::InfiniteFuture();
  bool stores = true;  // False once a write failed in this tick.

  void Wait(const std::string& id, v1::Job::Waiting waiting, v1::Device in_queue = v1::DEVICE_UNSPECIFIED) {
    if (in_queue != v1::DEVICE_UNSPECIFIED) waiting.set_queue_position(++places[in_queue]);
    waits[id] = std::move(waiting);
  }
  // The job waits for slots and keeps its place: jobs behind it may use neither its reserved slots nor its
  // quota.
  void Reserve(const v1::Job& job, const PlaceRequest& request, bool firm) {
    reservations.Add(job.id(), request, firm);
    quotas.Take(job.project(), request.nodes * request.ranks_per_node);
  }
};

// Visits the queue in order. Each job is launched, or adds its reservation for the jobs behind it. New
// reasons are stored in one write at the end.
void Reconciler::PlaceQueued() {
  if (queue_.empty()) return ShowWaiting({});
  std::vector<NodeSlots> slots = SlotsNow();
  QueueSnapshot look = SnapshotQueue(slots);
  if (QueueIsAsBefore(look)) return;
  Placing placing = {Reservations(std::move(slots)), RemainingQuotas(look.quotas, index_.held_ranks())};
  std::vector<v1::Job> notes;
  const size_t max_notes = MaxNotesPerTick(queue_.size());
  for (auto it = queue_.begin(); it != queue_.end();) {
    const QueuePlace place = *it;
    const std::string& id = std::get<std::string>(place);
    LiveJob& live = jobs_.at(id);
    ++placed_jobs_;
    const std::string reason = PlaceNext(&live, &placing);
    it = queue_.upper_bound(place);  // The job may have left the queue.
    if (live.job.state() != v1::JOB_STATE_QUEUED) {
      ForgetIfEnded(id);
      continue;
    }
    if (reason.empty() || reason == live.job.reason() || !placing.stores) continue;
    look.undone |= notes.size() == max_notes;
    if (notes.size() == max_notes) continue;
    absl::StatusOr<v1::Job> next = After(live, JobEvent::kNote, reason);
    if (next.ok()) notes.push_back(*std::move(next));
  }
  StoreReported(std::move(notes));
  ShowWaiting(std::move(placing.waits));
  look.undone |= placing.plans > 0 || !placing.stores;
  look.wake = placing.wake;
  look.changes = index_.changes();
  last_queue_ = std::move(look);
}

Reconciler::QueueSnapshot Reconciler::SnapshotQueue(const std::vector<NodeSlots>& slots) const {
  QueueSnapshot look;
  for (const NodeSlots& node : slots) {
    const auto view = views_.find(node.name);
    look.nodes.emplace_back(node.name, view == views_.end() ? 0 : view->second.stream_generation,
                            node.disconnected, node.measured, node.free_devices, node.cordon);
  }
  if (parts_.quotas) look.quotas = parts_.quotas();
  look.changes = index_.changes();
  look.settled = lease_.Settled();
  look.time = lease_.now();
  return look;
}

// Visiting a long queue takes a good part of a tick. It is skipped while no slot, quota or job changed and no
// retry delay ended. Conditions that end by time or by a running job's checkpoint (ranks that an agent
// reports, the delay before a job shrinks, whether a job can be preempted) take effect at the next visit, at
// most kLongQueueEvery later.
bool Reconciler::QueueIsAsBefore(const QueueSnapshot& now) const {
  const QueueSnapshot& last = last_queue_;
  return queue_.size() > kShortQueue && !last.undone && now.time < last.wake &&
         now.time - last.time < kLongQueueEvery && now.settled == last.settled &&
         now.changes == last.changes && now.nodes == last.nodes && now.quotas == last.quotas;
}

// Launches the job if possible. Otherwise returns why it waits; "" leaves its reason unchanged.
std::string Reconciler::PlaceNext(LiveJob* live, Placing* placing) {
  const std::string& id = live->job.id();
  if (lease_.now() < live->not_before) {  // It holds no place while it waits for its next attempt.
    placing->wake = std::min(placing->wake, live->not_before);
    placing->Wait(id, WaitingForTime(parts_.clock->WallOf(live->not_before)));
    return "";
  }
  if (live->job.attempt() >= kMaxAttempt) {
    GiveUp(live, absl::StrCat("a job has at most ", kMaxAttempt, " attempts")).IgnoreError();
    return "";
  }
  const PlaceRequest request = RequestAgain(live->job);
  v1::Job::Waiting held;
  std::string reason = HeldReason(live, request, &placing->quotas, &held);
  if (!reason.empty()) {
    placing->Wait(id, held);  // It holds no place either.
    return reason;
  }
  if (live->awaits_agents && !lease_.Settled()) {
    placing->Wait(id, WaitingForAgents(), request.device);
    placing->Reserve(live->job, request, /*firm=*/true);
    return kAwaitsAgents;
  }
  // It holds no place while those ranks are stopping either.
  if (reason = LeftoversOf(id); !reason.empty()) {
    placing->Wait(id, WaitingForRest());
    return reason;
  }
  const std::string ahead = placing->reservations.Ahead(request);
  return ahead.empty() ? PlaceFirst(live, request, placing) : PlaceBehind(live, request, ahead, placing);
}

// No job ahead of it waits for slots that it could use.
std::string Reconciler::PlaceFirst(LiveJob* live, const PlaceRequest& request, Placing* placing) {
  const std::string id = live->job.id();
  const PlaceDecision decision =
      DecideWorld(live, placing->reservations.now(), placing->quotas, &placing->plans);
  if (live->job.state() != v1::JOB_STATE_QUEUED) return "";
  if (decision.placed()) return LaunchFrom(live, decision, /*backfilled=*/false, placing);
  if (!decision.possible && lease_.Settled()) return SkipImpossible(*live, decision, placing);
  placing->Wait(id,
                decision.reason.empty()
                    ? WaitingForPlan()
                    : WaitingToBePlaced(RequestOf(live->job), placing->reservations.now()),
                request.device);
  if (MayShrink(live->job) && live->short_since.has_value()) {
    const absl::Time until = *live->short_since + ShrinkWait(live->job);
    if (until > lease_.now())
      placing->waits[id].set_not_before_unix_nanos(absl::ToUnixNanos(parts_.clock->WallOf(until)));
  }
  const Preempted preempted = PreemptFor(live->job, RequestAgain(live->job), placing->reservations);
  // A job that may shrink takes the slots that are free, and preempts no other job for them.
  const bool firm =
      preempted.suffices || decision.reason.empty() || MayShrink(live->job) || !lease_.Settled();
  placing->Reserve(live->job, request, firm);
  return decision.reason.empty() ? "" : absl::StrCat(decision.reason, preempted.note);
}

// `ahead` waits for slots that this job could also use: it gets the slots left by the reservations, or is
// backfilled.
std::string Reconciler::PlaceBehind(LiveJob* live, const PlaceRequest& request, const std::string& ahead,
                                    Placing* placing) {
  const Reservations& reservations = placing->reservations;
  const bool looks = ++placing->looks <= kMaxLooksPerTick;
  const bool fits = looks && CountNodes(request, reservations.unreserved()).now >= request.nodes;
  const bool backfilled = looks && !fits && live->job.preemptible() && !live->job.has_failed_checkpoint() &&
                          CountNodes(request, reservations.backfillable()).now >= request.nodes;
  PlaceDecision decision;
  const bool decided = fits || backfilled || (looks && MayShrink(live->job));
  if (decided) {
    decision = DecideWorld(live, backfilled ? reservations.backfillable() : reservations.unreserved(),
                           placing->quotas, &placing->plans);
    if (live->job.state() != v1::JOB_STATE_QUEUED) return "";
    if (decision.placed()) return LaunchFrom(live, decision, backfilled, placing);
  }
  const PlaceRequest now = RequestAgain(live->job);  // Includes the memory of a plan that was made just now.
  const bool pending = decided && decision.reason.empty();
  const bool shrinks = MayShrink(live->job);
  if (!shrinks && (!decided || decision.possible)) {
    decision.possible = CountNodes(now, reservations.now()).idle >= now.nodes;
    if (!decision.possible) decision.reason = Place(now, reservations.now()).reason;
  }
  if (!decision.possible && lease_.Settled()) return SkipImpossible(*live, decision, placing);
  placing->Wait(live->job.id(), WaitingBehind(ahead), request.device);
  Preempted preempted;
  if (looks) preempted = PreemptFor(live->job, now, reservations);
  placing->Reserve(live->job, now, preempted.suffices || pending || shrinks || !lease_.Settled());
  // Reasons are stored, so those of a long queue must not change with each launch.
  if (!looks) return BehindOthersReason(now);
  return absl::StrCat(BehindReason(now, jobs_.at(ahead).job, live->job), preempted.note);
}

// Reserving slots for this job would never be enough for it. Once enough nodes exist, it is ahead again and
// the jobs behind it respect its reservation.
std::string Reconciler::SkipImpossible(const LiveJob& live, const PlaceDecision& decision, Placing* placing) {
  placing->Wait(live.job.id(), WaitingToBePlaced(RequestOf(live.job), placing->reservations.now()));
  return absl::StrCat(decision.reason, "; jobs behind it are placed first");
}

std::string Reconciler::LaunchFrom(LiveJob* live, const PlaceDecision& decision, bool backfilled,
                                   Placing* placing) {
  const PlaceRequest request = RequestOf(live->job);
  const absl::Status launched = placing->stores ? Begin(live, decision, backfilled)
                                                : absl::UnavailableError("the store accepts no writes");
  // A record that is too large for the store delays no other job.
  const bool too_large = absl::IsOutOfRange(launched);
  placing->stores = launched.ok() || too_large;
  if (launched.ok()) {
    placing->quotas.Take(live->job.project(), request.nodes * request.ranks_per_node);
    std::vector<NodeSlots> now = placing->reservations.now();
    if (HasAttempt(live->job.state())) {
      TakeSlots(*FactsOf(live->job), &now);
    } else {
      now = SlotsNow();  // Its nodes are measured first.
    }
    placing->reservations.Renew(std::move(now));
    return "";
  }
  placing->Wait(live->job.id(), WaitingForDisk(), request.device);
  if (!too_large) placing->Reserve(live->job, request, /*firm=*/true);
  return absl::StrCat("its launch cannot be stored: ", launched.message());
}

// Returns why the job may not be launched yet, independent of free slots, or "".
std::string Reconciler::HeldReason(LiveJob* live, const PlaceRequest& request, RemainingQuotas* quotas,
                                   v1::Job::Waiting* waiting) {
  if (!WaitsForJobs(live->job))
    return quotas->WhyNot(live->job, request.nodes * request.ranks_per_node, waiting);
  *waiting = WaitingForJobs(live->job, StatesFor(live));
  return AfterReason(live->job, StatesFor(live));
}

// Ranks of earlier attempts may be alive if a lost agent reconnected with them: launching would run two
// attempts.
std::string Reconciler::LeftoversOf(const std::string& id) const {
  const NodePart* left = nullptr;
  int attempt = 0;
  for (auto it = attempts_.lower_bound({id, 0}); it != attempts_.end() && it->first.job == id; ++it) {
    for (const NodePart& part : it->second.parts) {
      if (part.stopped || lease_.now() >= part.awaited_until) continue;
      if (it->second.GaveUpOn(part, lease_.now())) continue;
      if (PresenceAt(part.node) == Presence::kLost) continue;
      // Prefer an attempt that an agent reports to host over one whose end is only unconfirmed.
      if (left != nullptr && left->hosted && !part.hosted) continue;
      left = &part;
      attempt = it->first.attempt;
    }
  }
  if (left == nullptr) return "";
  return absl::StrCat("waits until the remaining ranks of attempt ", attempt, " on ", left->node,
                      " have ended");
}

std::string Reconciler::PossibleLeftovers(const v1::Job& job) const {
  std::vector<std::string> lost = LostWithRanksOf(job.id());
  const std::string& node = job.failure().node();
  const bool of_last = job.failure().attempt() == job.attempt() && !node.empty();
  if (of_last && PresenceAt(node) == Presence::kLost && std::count(lost.begin(), lost.end(), node) == 0)
    lost.push_back(node);
  if (lost.empty()) return "";
  return absl::StrCat(" (node ", absl::StrJoin(lost, ", "), lost.size() == 1 ? " is" : " are",
                      " lost: the end of its ranks could not be confirmed)");
}

// Nodes that were lost with ranks of the job and have not registered since. The registry keeps the list
// across restarts and clears it when the agent registers.
std::vector<std::string> Reconciler::LostWithRanksOf(const std::string& id) const {
  std::vector<std::string> lost;
  for (const auto& [name, view] : views_) {
    const std::vector<std::string>& jobs = view.unconfirmed_jobs;
    if (std::find(jobs.begin(), jobs.end(), id) != jobs.end()) lost.push_back(name);
  }
  return lost;
}

EarlierAttempts Reconciler::EarlierAttemptsOf(const v1::Job& job) const {
  EarlierAttempts earlier;
  const bool leaves = job.state() == v1::JOB_STATE_PAUSING || job.state() == v1::JOB_STATE_CANCELLING;
  const bool starts_again = job.state() == v1::JOB_STATE_STARTING && job.attempt() > 1;
  if (leaves || starts_again) earlier.lost = LostWithRanksOf(job.id());
  if (starts_again) earlier.deleted.assign(job.deleted_hosts().begin(), job.deleted_hosts().end());
  earlier.ending = leaves && !LeftoversOf(job.id()).empty();
  return earlier;
}

void Reconciler::ShowWaiting(std::map<std::string, v1::Job::Waiting> waiting) {
  for (const std::string& id : index_.In(JobIndex::View::kPreflight)) {
    if (!jobs_.at(id).not_on_disk.empty()) waiting[id] = WaitingForDisk();
  }
  parts_.board->SetWaiting(std::move(waiting));
}

// Returns the job's placement, or why it waits. An open plan is made first, once there are nodes to plan for;
// the reason is empty if that must wait for the next tick. `plans`: number of plans made in this tick.
PlaceDecision Reconciler::Decide(LiveJob* live, const std::vector<NodeSlots>& slots, int* plans) {
  if (!IsPlanOpen(live->job)) return Place(RequestAgain(live->job), slots);
  const MemoryOffer offer = OfferTo(RequestOf(live->job), slots);
  if (LeavesPlanOpen(live->job.spec(), offer)) return Place(RequestAgain(live->job), slots);
  PlaceDecision waits;
  if (live->refused_offer != offer.bytes_per_rank) {
    if (++*plans > kMaxPlansPerTick || !ClosePlan(live, offer.bytes_per_rank).ok()) return waits;
    if (!IsPlanOpen(live->job)) return Place(RequestAgain(live->job), slots);
  }
  waits.possible = false;  // Not on the present nodes.
  waits.reason = absl::StrCat("does not fit the present nodes: ", live->refusal);
  return waits;
}

// Makes an open plan. It is stored with the launch at the latest. If only nodes with more memory could help,
// the job waits for them; any other rejection (a bug, or a rule newer than the job) ends it. An error is the
// store's.
absl::Status Reconciler::ClosePlan(LiveJob* live, int64_t offer_bytes) {
  const Plan plan = parts_.plan(live->job.spec(), offer_bytes);
  if (plan.accepted()) {
    KeepPlan(plan, /*open=*/false, &live->job);
    MarkUnsaved(live);
    return absl::OkStatus();
  }
  const std::string why = WhyRefused(plan);
  if (IsOnlyTooLarge(plan)) {
    live->refused_offer = offer_bytes;
    live->refusal = why;
    return absl::OkStatus();
  }
  return GiveUp(live, why);
}

absl::Status Reconciler::GiveUp(LiveJob* live, const std::string& why) {
  const std::string reason = absl::StrCat("cannot be launched: ", why);
  return Commit(live, JobEvent::kGiveUp, reason, [&](v1::Job* job) {
    v1::Job::Failure failure;
    failure.set_rank(-1);
    failure.set_error(reason);
    failure.set_cause(v1::FAILURE_CAUSE_CONFIGURATION);
    *job->mutable_failure() = failure;
  });
}

absl::Status Reconciler::Launch(LiveJob* live, const PlaceDecision& decision, bool backfilled) {
  const std::string reason =
      absl::StrCat(decision.reason, backfilled ? ", backfilled on slots that an earlier job reserves" : "");
  const int before = live->job.attempt();
  FSDPD_RETURN_IF_ERROR(Commit(live, JobEvent::kLaunch, reason, [&](v1::Job* job) {
    KeepEarlierHosts(before, job);
    job->mutable_placements()->Assign(decision.placements.begin(), decision.placements.end());
    for (v1::Job::Placement& placement : *job->mutable_placements()) {
      const auto view = views_.find(placement.node());
      if (view != views_.end()) placement.set_agent_instance(view->second.info.instance());
    }
    job->set_backfilled(backfilled);
  }));
  live->newest_elsewhere = 0;
  live->leftovers_until.clear();
  AttemptFacts& facts = OpenAttempt(live->job, /*recovered=*/false);
  facts.pace.WaitFrom(lease_.now());
  live->short_since.reset();
  live->refused_worlds.clear();
  // Removes keys that a node set for this attempt number before its launch.
  parts_.rendezvous->Close(facts.ref);
  parts_.rendezvous->Open(facts.ref);
  for (NodePart& part : facts.parts) {
    part.attached = true;
    SendLaunch(live->job, &part);
  }
  return absl::OkStatus();
}

void Reconciler::ResendLaunches(AttemptFacts* facts) {
  for (const std::string& node : facts->launches.TakeDue(lease_.now())) {
    const auto view = views_.find(node);
    if (view == views_.end() || !HasReported(view->second)) continue;
    LogWarning("launch was not acknowledged; resending node=%s job=%s attempt=%d", node, facts->ref.job,
               facts->ref.attempt);
    SendLaunch(jobs_.at(facts->ref.job).job, facts->PartOf(node), /*again=*/true);
  }
}

void Reconciler::SendLaunch(const v1::Job& job, NodePart* part, bool again) {
  AttemptFacts& facts = attempts_.at({job.id(), job.attempt()});
  v1::CoordinatorMessage message;
  v1::Launch* launch = message.mutable_launch();
  launch->set_job_id(job.id());
  launch->set_attempt(job.attempt());
  *launch->mutable_spec() = job.resolved();
  *launch->mutable_memory_plan() = job.memory_plan();
  *launch->mutable_skipped_samples() = job.skipped_samples();
  if (!job.checkpoints().empty()) launch->set_checkpoint_step(job.checkpoints().rbegin()->step());
  launch->set_world_size(static_cast<int32_t>(facts.ranks().size()));
  launch->set_first_rank(part->first_rank);
  launch->set_ranks(part->ranks);
  launch->mutable_devices()->Assign(part->devices.begin(), part->devices.end());
  launch->set_resent(again);
  if (again) {
    // Addressed to the current stream: a new process of the agent, which may have just registered, would
    // start the ranks again.
    parts_.nodes->Send(part->node, std::move(message), attached_.at(part->node));
    return;
  }
  part->launched = parts_.nodes->Send(part->node, std::move(message));
  if (part->launched)
    facts.launches.Sent(part->node, parts_.nodes->AcknowledgesLaunches(part->node), lease_.now());
}

bool Reconciler::HasRefusedRanks(const std::string& node) const {
  const auto it = refused_until_.find(node);
  return it != refused_until_.end() && lease_.now() < it->second;
}

// Nodes whose slots all count as taken, because it is unknown which ones are in use.
std::set<std::string> Reconciler::FullNodes() const {
  std::set<std::string> full;
  for (const auto& [ref, facts] : attempts_) {
    for (const NodePart& part : facts.parts) {
      if (part.leftover && !part.stopped) full.insert(part.node);
    }
  }
  for (const auto& [node, until] : refused_until_) {
    if (HasRefusedRanks(node)) full.insert(node);
  }
  return full;
}

std::vector<NodeSlots> Reconciler::SlotsNow() const {
  std::vector<const NodeView*> usable;
  std::vector<NodeSlots> disconnected;
  for (const auto& [name, view] : views_) {
    if (HasReported(view)) {
      usable.push_back(&view);
    } else if (PresenceAt(name) != Presence::kLost) {
      disconnected.push_back(IdleSlots(view));
      disconnected.back().disconnected = true;
      disconnected.back().free_devices.clear();
    }
  }
  std::vector<NodeSlots> slots = CountSlots(usable, attempts_);
  for (NodeSlots& node : slots) {
    if (full_nodes_.count(node.name) > 0) node.free_devices.clear();
  }
  HoldForPreflights(&slots);
  slots.insert(slots.end(), disconnected.begin(), disconnected.end());
  cordons_.MarkIn(&slots);
  return slots;
}

}  // namespace fsdpd
