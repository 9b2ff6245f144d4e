#include "coordinator/reconcile/reconciler.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/attempt/failure_policy.h"
#include "coordinator/job/job_ledger.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/metrics/meters.h"
#include "coordinator/nodes/known_node.h"

namespace fsdpd {
namespace {

// Fits many times a step report of 16 jobs from each agent that a coordinator is sized for (kMaxWorld), and
// the burst of one agent after a reconnect.
constexpr size_t kMaxQueued = 1 << 16;
// Longest pause after a tick.
constexpr std::chrono::milliseconds kLongestRest(50);
constexpr absl::Duration kSaveRestEvery = absl::Seconds(1);

}  // namespace

Reconciler::Reconciler(ReconcilerOptions options, Parts parts)
    : options_(std::move(options)),
      parts_(std::move(parts)),
      events_(kMaxQueued),
      jobs_(
          {parts_.store, parts_.board, parts_.clock, parts_.meters, options_.leads, options_.progress_every}),
      presence_(parts_.nodes, AgentLease(options_.reattach_grace, options_.tick, parts_.clock->Now())),
      attempts_({&jobs_, &presence_, parts_.nodes, parts_.rendezvous, parts_.clock}),
      cordons_(parts_.store),
      health_({&presence_, &cordons_, parts_.clock}),
      preflights_(options_.preflight, {&jobs_, &presence_, &attempts_, &cordons_, parts_.nodes, parts_.clock,
                                       parts_.meters, [this] { records_.RememberSoon(); }}),
      slots_({&jobs_, &presence_, &attempts_, &preflights_, &cordons_, parts_.clock}),
      records_({&jobs_, &presence_, &health_, &preflights_, parts_.store, parts_.clock}),
      drains_({&jobs_, &presence_, &attempts_, &slots_, &cordons_, parts_.clock}),
      dependencies_(&jobs_, parts_.store),
      worlds_(&jobs_, &presence_, parts_.plan),
      queue_({&jobs_, &presence_, &attempts_, &preflights_, &slots_, &worlds_, &dependencies_, parts_.board,
              parts_.clock, parts_.quotas}),
      judge_(options_.verdict, {&jobs_, &presence_, &attempts_, &health_, parts_.clock}),
      ended_(options_.retention, {&jobs_, &presence_, parts_.nodes, parts_.store, parts_.clock}),
      reports_(
          {&jobs_, &presence_, &attempts_, &judge_, parts_.store, parts_.board, parts_.clock, parts_.meters}),
      registrations_({&jobs_, &presence_, &attempts_, &health_, &preflights_, &records_, &drains_,
                      parts_.store, parts_.meters}),
      job_commands_(
          {&jobs_, &presence_, &attempts_, &dependencies_, &records_, &ended_, parts_.store, parts_.clock}),
      node_commands_({&jobs_, &presence_, &attempts_, &health_, &preflights_, &slots_, &records_, &drains_,
                      &cordons_, parts_.nodes, parts_.clock,
                      [this](const std::string& node) { ForgetNode(node); }}) {}

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
    records_.Load(node, view);
    health_.Load(node);
  }
  FSDPD_ASSIGN_OR_RETURN(std::vector<v1::Job> jobs, parts_.store->LiveJobs());
  for (v1::Job& job : jobs) {
    ResumeLedger(ledger_date().Now(), &job);
    if (job.deleted_hosts().empty()) {
      const std::vector<std::string> named = DeletedHostsIn(job.reason());
      job.mutable_deleted_hosts()->Assign(named.begin(), named.end());
    }
    parts_.board->Publish(job);
    LiveJob& live = jobs_.Add(std::move(job));
    const v1::JobState state = live.job.state();
    if (HasAttempt(state)) attempts_.Load(live.job);
    LogInfo("job loaded job=%s state=%s attempt=%d", live.job.id(), ShortName(state), live.job.attempt());
    live.awaits_agents = !HasAttempt(state);
    live.newest_elsewhere = live.job.attempt() + kMaxAttemptsAhead;
    if (state == v1::JOB_STATE_QUEUED && live.job.attempt() > 0)
      live.not_before = presence_.now() + RetryDelay(live.job);
  }
  return absl::OkStatus();
}

void Reconciler::Start() {
  thread_ = std::thread([this] {
    while (!events_.closed()) {
      const std::deque<EventQueue::Event> events = events_.Take(options_.tick);
      // Without leadership events are dropped, and their callers get an error.
      if (!jobs_.Leads()) continue;
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
  if (!jobs_.Leads()) return;
  presence_.Read();
  cordons_.SaveRest();
  jobs_.SaveRest(presence_.now(), /*all=*/true);
  records_.Remember(/*all=*/true);
}

// --- A tick ------------------------------------------------------------------------------------------------

void Reconciler::RunOnce(absl::Duration wait) { RunTick(events_.Take(wait)); }

void Reconciler::RunTick(const std::deque<EventQueue::Event>& events) {
  BeginTick();
  // Leadership may be lost in any of these: a write blocks until it is known whether it was stored.
  for (const EventQueue::Event& event : events) {
    if (jobs_.Leads()) event();
  }
  reports_.PublishPositions();
  reports_.ShowSlowRanks();
  parts_.nodes->EndSilentStreams(presence_.lease());
  ForgetLostNodes();
  presence_.Read();
  job_commands_.ResumeAutomatically();
  judge_.AdvanceAll();
  if (!jobs_.Leads()) return;
  attempts_.AdvanceStops();
  slots_.ReadFullNodes();
  const bool all_noted = dependencies_.Advance();
  preflights_.Advance();
  drains_.Advance();
  health_.UncordonHealthy();
  queue_.PlaceJobs();
  SaveRest();
  records_.Remember();
  if (all_noted) ended_.ForgetOld();
  ended_.SendForgets();
  parts_.nodes->SetFreeSlots(slots_.CountFreeSlots());
}

void Reconciler::BeginTick() {
  const absl::Duration still = presence_.BeginTick(parts_.clock->Now());
  if (still == absl::ZeroDuration()) return;
  attempts_.RestartWaits();
  preflights_.Delay(still);
  LogWarning("coordinator was suspended duration=%s reattach_grace=%s", absl::FormatDuration(still),
             absl::FormatDuration(options_.reattach_grace));
}

void Reconciler::ForgetLostNodes() {
  const auto has_ended = [this](const std::string& job) { return jobs_.HasEnded(job); };
  for (const std::string& node : parts_.nodes->ForgetLost(presence_.lease(), has_ended)) {
    ForgetNode(node);
    LogInfo("removed lost node node=%s", node);
  }
}

void Reconciler::ForgetNode(const std::string& node) {
  presence_.Forget(node);
  preflights_.Forget(node);
  reports_.ForgetNode(node);
  attempts_.ForgetNode(node);
  health_.Forget(node);
}

void Reconciler::SaveRest() {
  if (presence_.now() - rest_saved_ < kSaveRestEvery) return;
  rest_saved_ = presence_.now();
  cordons_.SaveRest();
  jobs_.SaveRest(presence_.now());
}

// --- Commands of users -------------------------------------------------------------------------------------

template <typename T>
T Reconciler::Decide(const std::string& stopped, std::function<T()> decide) {
  EventQueue::Event own_tick;
  if (!options_.own_thread) own_tick = [this] { RunOnce(); };
  return events_.Call<T>(
      [decide = std::move(decide)](const std::function<void(T)>& answer) { answer(decide()); },
      absl::UnavailableError(absl::StrCat("the coordinator is stopping; ", stopped)), own_tick);
}

absl::Status Reconciler::DecideForNode(std::function<absl::Status()> decide) {
  return Decide<absl::Status>("nothing was changed", std::move(decide));
}

absl::StatusOr<v1::Job> Reconciler::DecideForJob(const std::string& id, const std::string& etag,
                                                 const std::string& done,
                                                 std::function<absl::StatusOr<v1::Job>()> decide) {
  return Decide<absl::StatusOr<v1::Job>>(
      absl::StrCat("the job was not ", done),
      [this, id, etag, decide = std::move(decide)]() -> absl::StatusOr<v1::Job> {
        FSDPD_RETURN_IF_ERROR(job_commands_.CheckEtag(id, etag));
        return decide();
      });
}

absl::StatusOr<v1::Job> Reconciler::Cancel(const std::string& id, const std::string& reason, int64_t grace_ms,
                                           const std::string& etag) {
  return DecideForJob(id, etag, "cancelled", [=] { return job_commands_.Cancel(id, reason, grace_ms); });
}

absl::StatusOr<v1::Job> Reconciler::Pause(const std::string& id, const std::string& reason, int64_t grace_ms,
                                          const std::string& etag) {
  return DecideForJob(id, etag, "paused", [=] { return job_commands_.Pause(id, reason, grace_ms); });
}

absl::StatusOr<v1::Job> Reconciler::Resume(const std::string& id, const std::string& reason,
                                           const std::string& etag) {
  return DecideForJob(id, etag, "resumed", [=] { return job_commands_.Resume(id, reason); });
}

absl::StatusOr<v1::Job> Reconciler::Retry(const std::string& id, const std::string& reason,
                                          const std::string& etag) {
  return DecideForJob(id, etag, "retried", [=] { return job_commands_.Retry(id, reason); });
}

absl::StatusOr<v1::Job> Reconciler::Delete(const std::string& id, const std::string& etag,
                                           std::vector<std::string>* unconfirmed_nodes) {
  const auto nodes = std::make_shared<std::vector<std::string>>();  // Outlives a call that gives up.
  absl::StatusOr<v1::Job> job =
      DecideForJob(id, etag, "deleted", [=] { return job_commands_.Delete(id, nodes.get()); });
  if (job.ok() && unconfirmed_nodes != nullptr) *unconfirmed_nodes = std::move(*nodes);
  return job;
}

absl::Status Reconciler::Cordon(const std::string& node, const std::string& reason) {
  return DecideForNode([=] { return node_commands_.Cordon(node, reason); });
}

absl::Status Reconciler::Uncordon(const std::string& node) {
  return DecideForNode([=] { return node_commands_.Uncordon(node); });
}

absl::Status Reconciler::Drain(const std::string& node, const std::string& reason, int64_t grace_ms,
                               bool force) {
  return DecideForNode([=] { return node_commands_.Drain(node, reason, grace_ms, force); });
}

absl::Status Reconciler::DeleteNode(const std::string& node, bool force) {
  return DecideForNode([=] { return node_commands_.Delete(node, force); });
}

absl::Status Reconciler::Preflight(const std::string& node) {
  return DecideForNode([=] { return node_commands_.Preflight(node); });
}

// --- Events ------------------------------------------------------------------------------------------------

void Reconciler::Submitted(v1::Job job, absl::Time admitted) {
  const absl::Time begin = ledger_date().Of(std::min(admitted, parts_.clock->Now()));
  events_.Push([this, begin, job = std::move(job)] {
    BeginLedger(begin, &jobs_.Add(job).job);
    LogInfo("job submitted job=%s name=%s", job.id(), job.spec().name());
  });
}

void Reconciler::Attached(const v1::Register& info, int64_t stream_generation) {
  events_.Push([this, info, stream_generation] { registrations_.OnAttached(info, stream_generation); });
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
    reports_.OnUpdate(node, update, received, age);
  };
  if (unhurried) {
    events_.PushLowPriority(std::move(event));
  } else {
    events_.Push(std::move(event));
  }
}

void Reconciler::OnReport(const std::string& node, const v1::Stopped& stopped) {
  events_.Push(
      [this, node, ref = AttemptRef{stopped.job_id(), stopped.attempt()}, memory = stopped.memory()] {
        if (AttemptFacts* facts = attempts_.Find(ref)) facts->TakeStopped(node, memory);
      });
}

void Reconciler::OnReport(const std::string& node, const v1::ComputeTimes& times) {
  events_.PushLowPriority([this, node, times] { reports_.OnComputeTimes(node, times); });
}

void Reconciler::OnReport(const std::string& node, const v1::PreflightResult& result) {
  events_.Push([this, node, result] { preflights_.OnResult(node, result); });
}

void Reconciler::AttemptFailed(const std::string& node, const AttemptRef& ref, const std::string& what) {
  events_.Push([this, node, ref, what] {
    AttemptFacts* facts = attempts_.Find(ref);
    if (facts != nullptr && facts->PartOf(node) != nullptr && facts->fault.empty()) facts->fault = what;
  });
}

}  // namespace fsdpd
