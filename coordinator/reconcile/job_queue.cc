#include "coordinator/reconcile/job_queue.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/check.h"
#include "coordinator/attempt/job_pause.h"
#include "coordinator/attempt/slot_count.h"
#include "coordinator/job/elastic.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"
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

constexpr size_t kMaxPreemptedNames = 4;  // In a reason.

}  // namespace

// Resources that are left in a tick, and the reasons why jobs wait.
struct JobQueue::Placing {
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
void JobQueue::PlaceJobs() {
  const std::set<QueuePlace>& queue = parts_.jobs->queue();
  if (queue.empty()) return ShowWaiting({});
  std::vector<NodeSlots> slots = parts_.slots->Slots();
  Snapshot look = SnapshotNow(slots);
  if (IsAsBefore(look)) return;
  Placing placing = {Reservations(std::move(slots)),
                     RemainingQuotas(look.quotas, parts_.jobs->index().held_ranks())};
  std::vector<v1::Job> notes;
  const size_t max_notes = MaxNotesPerTick(queue.size());
  for (auto it = queue.begin(); it != queue.end();) {
    const QueuePlace place = *it;
    const std::string& id = std::get<std::string>(place);
    LiveJob& live = parts_.jobs->At(id);
    ++visited_;
    const std::string reason = PlaceNext(&live, &placing);
    it = queue.upper_bound(place);  // The job may have left the queue.
    if (live.job.state() != v1::JOB_STATE_QUEUED) {
      parts_.jobs->ForgetIfEnded(id);
      continue;
    }
    if (reason.empty() || reason == live.job.reason() || !placing.stores) continue;
    look.undone |= notes.size() == max_notes;
    if (notes.size() == max_notes) continue;
    absl::StatusOr<v1::Job> next = parts_.jobs->After(live, JobEvent::kNote, reason);
    if (next.ok()) notes.push_back(*std::move(next));
  }
  parts_.jobs->CommitAll(std::move(notes));
  ShowWaiting(std::move(placing.waits));
  look.undone |= placing.plans > 0 || !placing.stores;
  look.wake = placing.wake;
  look.changes = parts_.jobs->index().changes();
  last_ = std::move(look);
}

JobQueue::Snapshot JobQueue::SnapshotNow(const std::vector<NodeSlots>& slots) const {
  Snapshot look;
  for (const NodeSlots& node : slots) {
    const NodeView* view = parts_.presence->Find(node.name);
    look.nodes.emplace_back(node.name, view == nullptr ? 0 : view->stream_generation, node.disconnected,
                            node.measured, node.free_devices, node.cordon);
  }
  if (parts_.quotas) look.quotas = parts_.quotas();
  look.changes = parts_.jobs->index().changes();
  look.settled = parts_.presence->Settled();
  look.time = parts_.presence->now();
  return look;
}

// Visiting a long queue takes a good part of a tick. It is skipped while no slot, quota or job changed and no
// retry delay ended. Conditions that end by time or by a running job's checkpoint (ranks that an agent
// reports, the delay before a job shrinks, whether a job can be preempted) take effect at the next visit, at
// most kLongQueueEvery later.
bool JobQueue::IsAsBefore(const Snapshot& now) const {
  const Snapshot& last = last_;
  return parts_.jobs->queue().size() > kShortQueue && !last.undone && now.time < last.wake &&
         now.time - last.time < kLongQueueEvery && now.settled == last.settled &&
         now.changes == last.changes && now.nodes == last.nodes && now.quotas == last.quotas;
}

// Launches the job if possible. Otherwise returns why it waits; "" leaves its reason unchanged.
std::string JobQueue::PlaceNext(LiveJob* live, Placing* placing) {
  const std::string& id = live->job.id();
  if (parts_.presence->now() < live->not_before) {  // It holds no place while it waits for its next attempt.
    placing->wake = std::min(placing->wake, live->not_before);
    placing->Wait(id, WaitingForTime(parts_.clock->WallOf(live->not_before)));
    return "";
  }
  if (live->job.attempt() >= kMaxAttempt) {
    parts_.worlds->GiveUp(live, absl::StrCat("a job has at most ", kMaxAttempt, " attempts")).IgnoreError();
    return "";
  }
  const PlaceRequest request = RequestAgain(live->job);
  v1::Job::Waiting held;
  std::string reason = HeldReason(live, request, &placing->quotas, &held);
  if (!reason.empty()) {
    placing->Wait(id, held);  // It holds no place either.
    return reason;
  }
  if (live->awaits_agents && !parts_.presence->Settled()) {
    placing->Wait(id, WaitingForAgents(), request.device);
    placing->Reserve(live->job, request, /*firm=*/true);
    return kAwaitsAgents;
  }
  // It holds no place while those ranks are stopping either.
  if (reason = parts_.attempts->LeftoversOf(id); !reason.empty()) {
    placing->Wait(id, WaitingForRest());
    return reason;
  }
  const std::string ahead = placing->reservations.Ahead(request);
  return ahead.empty() ? PlaceFirst(live, request, placing) : PlaceBehind(live, request, ahead, placing);
}

// No job ahead of it waits for slots that it could use.
std::string JobQueue::PlaceFirst(LiveJob* live, const PlaceRequest& request, Placing* placing) {
  const std::string id = live->job.id();
  const PlaceDecision decision =
      parts_.worlds->Choose(live, placing->reservations.now(), placing->quotas, &placing->plans);
  if (live->job.state() != v1::JOB_STATE_QUEUED) return "";
  if (decision.placed()) return LaunchFrom(live, decision, /*backfilled=*/false, placing);
  if (!decision.possible && parts_.presence->Settled()) return SkipImpossible(*live, decision, placing);
  placing->Wait(id,
                decision.reason.empty()
                    ? WaitingForPlan()
                    : WaitingToBePlaced(RequestOf(live->job), placing->reservations.now()),
                request.device);
  if (MayShrink(live->job) && live->short_since.has_value()) {
    const absl::Time until = *live->short_since + ShrinkWait(live->job);
    if (until > parts_.presence->now())
      placing->waits[id].set_not_before_unix_nanos(absl::ToUnixNanos(parts_.clock->WallOf(until)));
  }
  const Preempted preempted = PreemptFor(live->job, RequestAgain(live->job), placing->reservations);
  // A job that may shrink takes the slots that are free, and preempts no other job for them.
  const bool firm =
      preempted.suffices || decision.reason.empty() || MayShrink(live->job) || !parts_.presence->Settled();
  placing->Reserve(live->job, request, firm);
  return decision.reason.empty() ? "" : absl::StrCat(decision.reason, preempted.note);
}

// `ahead` waits for slots that this job could also use: it gets the slots left by the reservations, or is
// backfilled.
std::string JobQueue::PlaceBehind(LiveJob* live, const PlaceRequest& request, const std::string& ahead,
                                  Placing* placing) {
  const Reservations& reservations = placing->reservations;
  const bool looks = ++placing->looks <= kMaxLooksPerTick;
  const bool fits = looks && CountNodes(request, reservations.unreserved()).now >= request.nodes;
  const bool backfilled = looks && !fits && live->job.preemptible() && !live->job.has_failed_checkpoint() &&
                          CountNodes(request, reservations.backfillable()).now >= request.nodes;
  PlaceDecision decision;
  const bool decided = fits || backfilled || (looks && MayShrink(live->job));
  if (decided) {
    decision =
        parts_.worlds->Choose(live, backfilled ? reservations.backfillable() : reservations.unreserved(),
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
  if (!decision.possible && parts_.presence->Settled()) return SkipImpossible(*live, decision, placing);
  placing->Wait(live->job.id(), WaitingBehind(ahead), request.device);
  Preempted preempted;
  if (looks) preempted = PreemptFor(live->job, now, reservations);
  placing->Reserve(live->job, now, preempted.suffices || pending || shrinks || !parts_.presence->Settled());
  // Reasons are stored, so those of a long queue must not change with each launch.
  if (!looks) return BehindOthersReason(now);
  return absl::StrCat(BehindReason(now, parts_.jobs->At(ahead).job, live->job), preempted.note);
}

// Reserving slots for this job would never be enough for it. Once enough nodes exist, it is ahead again and
// the jobs behind it respect its reservation.
std::string JobQueue::SkipImpossible(const LiveJob& live, const PlaceDecision& decision, Placing* placing) {
  placing->Wait(live.job.id(), WaitingToBePlaced(RequestOf(live.job), placing->reservations.now()));
  return absl::StrCat(decision.reason, "; jobs behind it are placed first");
}

std::string JobQueue::LaunchFrom(LiveJob* live, const PlaceDecision& decision, bool backfilled,
                                 Placing* placing) {
  const PlaceRequest request = RequestOf(live->job);
  const absl::Status launched = placing->stores ? parts_.preflights->Begin(live, decision, backfilled)
                                                : absl::UnavailableError("the store accepts no writes");
  // A record that is too large for the store delays no other job.
  const bool too_large = absl::IsOutOfRange(launched);
  placing->stores = launched.ok() || too_large;
  if (launched.ok()) {
    placing->quotas.Take(live->job.project(), request.nodes * request.ranks_per_node);
    std::vector<NodeSlots> now = placing->reservations.now();
    if (HasAttempt(live->job.state())) {
      TakeSlots(*parts_.attempts->Find(live->job), &now);
    } else {
      now = parts_.slots->Slots();  // Its nodes are measured first.
    }
    placing->reservations.Renew(std::move(now));
    return "";
  }
  placing->Wait(live->job.id(), WaitingForDisk(), request.device);
  if (!too_large) placing->Reserve(live->job, request, /*firm=*/true);
  return absl::StrCat("its launch cannot be stored: ", launched.message());
}

// Returns why the job may not be launched yet, independent of free slots, or "".
std::string JobQueue::HeldReason(LiveJob* live, const PlaceRequest& request, RemainingQuotas* quotas,
                                 v1::Job::Waiting* waiting) {
  if (!WaitsForJobs(live->job))
    return quotas->WhyNot(live->job, request.nodes * request.ranks_per_node, waiting);
  *waiting = WaitingForJobs(live->job, parts_.dependencies->StatesFor(live));
  return AfterReason(live->job, parts_.dependencies->StatesFor(live));
}

void JobQueue::ShowWaiting(std::map<std::string, v1::Job::Waiting> waiting) {
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kPreflight)) {
    if (!parts_.jobs->At(id).not_on_disk.empty()) waiting[id] = WaitingForDisk();
  }
  parts_.board->SetWaiting(std::move(waiting));
}

// Preempts jobs for `head`, which waits for slots next to the reservations `ahead`.
JobQueue::Preempted JobQueue::PreemptFor(const v1::Job& head, const PlaceRequest& request,
                                         const Reservations& ahead) {
  if (IsPlanOpen(head) || !parts_.presence->Settled()) return {};
  const Victims victims =
      ChooseVictims(request, head.spec().priority(), ahead.now(), ahead, parts_.slots->OccupantsFor(head));
  for (const std::string& id : victims.leave) {
    // A job whose pause could not be stored is chosen again in the next tick, when the others of this tick
    // are already leaving.
    if (!Preempt(&parts_.jobs->At(id), head).ok()) break;
  }
  std::vector<std::string> leave;
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kPausing)) {
    if (parts_.jobs->At(id).job.pause().preempted_by() == head.id()) leave.push_back(id);
  }
  if (leave.empty()) return {victims.suffices, ""};
  const bool one = leave.size() == 1, all = leave.size() <= kMaxPreemptedNames;
  if (!all) leave.resize(kMaxPreemptedNames);
  return {victims.suffices, absl::StrCat("; ", absl::StrJoin(leave, ", "), all ? "" : ", ...",
                                         one ? " saves and leaves for it" : " save and leave for it")};
}

// REQUIRES: PREFLIGHT, STARTING or RUNNING.
absl::Status JobQueue::Preempt(LiveJob* live, const v1::Job& head) {
  const bool backfilled = head.spec().priority() <= live->job.spec().priority();
  const std::string preemptor =
      absl::StrCat("preempted by job ", head.id(),
                   backfilled ? std::string(", which reserved its slots")
                              : absl::StrCat(", of priority ", head.spec().priority()));
  if (live->job.state() == v1::JOB_STATE_PREFLIGHT)
    return parts_.jobs->Commit(
        live, JobEvent::kUnplace,
        absl::StrCat(preemptor, ", before its launch; it resumes when slots are free"));
  AttemptFacts* facts = parts_.attempts->Find(live->job);
  FSDPD_CHECK(facts != nullptr);
  const std::string why_not = WhyNotPaused(live->job, kPreemptionGraceMs);
  const int64_t grace_ms = why_not.empty() ? kPreemptionGraceMs : 0;
  FSDPD_RETURN_IF_ERROR(
      parts_.jobs->Commit(live, JobEvent::kPause,
                          absl::StrCat(preemptor, ": the ranks ",
                                       why_not.empty() ? std::string("save and leave")
                                                       : absl::StrCat("leave without a save (", why_not, ")"),
                                       ", and it resumes when slots are free"),
                          [&](v1::Job* job) {
                            v1::Job::Pause* pause = job->mutable_pause();
                            pause->set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
                            pause->set_grace_ms(grace_ms);
                            pause->set_resumes_automatically(true);
                            pause->set_preempted_by(head.id());
                          }));
  parts_.attempts->BeginStop(facts, grace_ms, preemptor, /*save=*/grace_ms > 0);
  return absl::OkStatus();
}

}  // namespace fsdpd
