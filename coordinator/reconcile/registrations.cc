#include "coordinator/reconcile/registrations.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

#include <algorithm>

#include "base/log.h"
#include "coordinator/job/job_checkpoints.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/metrics/meters.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

constexpr char kMeasuring[] = "preflight";  // HostedAttempt.job_id of a preflight, which belongs to no job.
constexpr int64_t kUnknownGraceMs = 60000;  // For ranks of an unknown job, to save a checkpoint.
// For attempts that an agent claims to host: time to save (kUnknownGraceMs) and to report the end.
constexpr absl::Duration kLeftoverTimeout = absl::Seconds(75);
// A rank is killed this long after its grace.
constexpr absl::Duration kKilledWithin = absl::Seconds(2);
// An agent hosts as many attempts as it has slots, and repeats the ends of some earlier ones.
constexpr int kMaxLeftovers = 64;

}  // namespace

void Registrations::OnAttached(const v1::Register& info, int64_t stream_generation) {
  const std::string& node = info.node();
  parts_.presence->OnAttached(node, stream_generation);
  parts_.health->OnAttached(node, info.instance());
  parts_.records->ForgetDeletedHost(node);
  AttemptBook::Hosted hosted;
  for (const v1::HostedAttempt& attempt : info.hosted()) {
    hosted[{attempt.job_id(), attempt.attempt()}].insert(attempt.ranks().begin(), attempt.ranks().end());
  }
  const auto measuring = std::find_if(hosted.begin(), hosted.end(),
                                      [](const auto& each) { return each.first.job == kMeasuring; });
  if (parts_.preflights->OnAttached(node, measuring != hosted.end())) hosted.erase(measuring);
  const size_t hosts = hosted.size();
  int leftovers = parts_.attempts->OnAttached(info, &hosted);
  // Unwanted attempts are normal after a restart: agents list an attempt for a while after its end.
  LogInfo("agent attached node=%s slots=%d hosted_attempts=%d unwanted=%d", node, info.slots(), hosts,
          hosted.size());
  int refused = 0;
  const AttemptRef* first_refused = nullptr;
  for (const auto& [ref, ranks] : hosted) {
    if (StopUnplaced(info, ref, leftovers++)) continue;
    if (!ranks.empty())
      parts_.attempts->HoldForRefused(
          node, parts_.presence->now() + absl::Milliseconds(kStopGraceMs) + kKilledWithin);
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
  if (has_ranks) parts_.drains->OnRanksFound(node);
}

bool Registrations::StopUnplaced(const v1::Register& info, const AttemptRef& ref, int leftovers) {
  const std::string& node = info.node();
  const auto refuse = [&](const char* why) {
    parts_.attempts->SendRefusal(ref, node, why);
    return false;
  };
  if (ref.job == kMeasuring) return refuse("the coordinator did not request this preflight");
  if (!CheckJobId(ref.job).ok()) return refuse("invalid job id");
  if (leftovers >= std::max(kMaxLeftovers, info.slots()))
    return refuse("the agent reports more attempts than it can host");
  LiveJob* live = parts_.jobs->Find(ref.job);
  absl::StatusOr<v1::Job> ended = absl::NotFoundError("");
  if (live == nullptr) ended = parts_.store->Get(ref.job);
  if (live == nullptr && !ended.ok()) {
    const StopOrder order = absl::IsNotFound(ended.status())
                                ? OrderForUnknown(ref.job)
                                : StopOrder{kStopGraceMs, "the job's record cannot be read"};
    parts_.attempts->AddLeftover(ref, node, order, /*placed=*/false,
                                 parts_.presence->now() + kLeftoverTimeout);
    return true;
  }
  const v1::Job& job = live != nullptr ? live->job : *ended;
  const int newest = live != nullptr ? live->newest_elsewhere : job.attempt() + kMaxAttemptsAhead;
  const Hosting hosting = HostingOf(job, node, ref.attempt, newest);
  // The record of a job that was never launched has no nodes. Right after a restart the job waits for agents
  // anyway. If the state dates from before its launch, the job also waits for the end of the attempts that
  // agents report, but only once: a node with a false claim can only delay it.
  const bool unlaunched =
      live != nullptr && job.placements().empty() && live->awaits_agents && !parts_.presence->Settled();
  const bool delays = hosting == Hosting::kNone && unlaunched && ref.attempt <= kMaxAttemptsAhead;
  const StopOrder over = {kStopGraceMs, "the attempt has ended"};
  // The record of an older release does not contain the nodes of earlier attempts.
  const bool of_old_record = live != nullptr && job.earlier_hosts().empty() && ref.attempt < job.attempt();
  if (hosting == Hosting::kNone && of_old_record) {
    parts_.attempts->AddLeftover(ref, node, over, /*placed=*/false, WaitForLeftovers(node, live));
    return true;
  }
  if (hosting == Hosting::kNone && !delays) return refuse("the job was not placed on this node");
  if (live != nullptr && hosting != Hosting::kPlaced) OnNewerAttempt(node, ref.attempt, live);
  const StopOrder newer = {kUnknownGraceMs, "the coordinator's state is older than this attempt", true};
  parts_.attempts->AddLeftover(ref, node, hosting == Hosting::kPlaced ? over : newer, /*placed=*/!delays,
                               WaitForLeftovers(node, live));
  return true;
}

// The wait counts from the node's first claim since the last launch: a node that never reports an end, or
// claims one attempt after another, delays the next launch only once. A job that is not live may be retried.
absl::Time Registrations::WaitForLeftovers(const std::string& node, LiveJob* live) {
  if (live == nullptr) return parts_.presence->now() + kLeftoverTimeout;
  return live->leftovers_until.try_emplace(node, parts_.presence->now() + kLeftoverTimeout).first->second;
}

// The newer attempt saves its progress, and the job's next attempt resumes from there.
void Registrations::OnNewerAttempt(const std::string& node, int attempt, LiveJob* live) {
  if (HasAttempt(live->job.state())) {
    AttemptFacts* facts = parts_.attempts->Find(live->job);
    facts->newer_attempt = std::max(facts->newer_attempt, attempt);
    facts->newer_on = node;
    return;
  }
  const std::string words =
      absl::StrCat("node ", node, " hosts attempt ", attempt,
                   ", which the coordinator's state does not contain; that attempt saves and stops first");
  const JobTable::Edit edit = [&](v1::Job* job) { NumberAfter(attempt, job); };
  // If this cannot be stored, an agent rejects a launch with a number that it already knows.
  parts_.jobs->Commit(live, JobEvent::kNote, words, edit).IgnoreError();
}

// While events are retained, the job's newest event states how the job ended. Without one, the coordinator's
// state may be older than the job, for example a restored backup: the ranks save first.
StopOrder Registrations::OrderForUnknown(const std::string& job) const {
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

}  // namespace fsdpd
