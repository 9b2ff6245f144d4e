#include "coordinator/job/job_ledger.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace fsdpd {
namespace {

using v1::Job;
using Ledger = v1::Job::Ledger;

struct Account {
  Ledger::Cause cause;
  const char* name;
  double (Ledger::*get)() const;
  void (Ledger::*set)(double);
};

constexpr Account kAccounts[] = {
    {Ledger::CAUSE_QUEUE, "queue", &Ledger::queue_seconds, &Ledger::set_queue_seconds},
    {Ledger::CAUSE_PREFLIGHT, "preflight", &Ledger::preflight_seconds, &Ledger::set_preflight_seconds},
    {Ledger::CAUSE_START, "start", &Ledger::start_seconds, &Ledger::set_start_seconds},
    {Ledger::CAUSE_LOAD, "load", &Ledger::load_seconds, &Ledger::set_load_seconds},
    {Ledger::CAUSE_STEP, "step", &Ledger::step_seconds, &Ledger::set_step_seconds},
    {Ledger::CAUSE_EXPOSED, "exposed", &Ledger::exposed_seconds, &Ledger::set_exposed_seconds},
    {Ledger::CAUSE_SAVE, "save", &Ledger::save_seconds, &Ledger::set_save_seconds},
    {Ledger::CAUSE_REPLAY, "replay", &Ledger::replay_seconds, &Ledger::set_replay_seconds},
    {Ledger::CAUSE_RESTART, "restart", &Ledger::restart_seconds, &Ledger::set_restart_seconds},
    {Ledger::CAUSE_HANG, "hang", &Ledger::hang_seconds, &Ledger::set_hang_seconds},
    {Ledger::CAUSE_PAUSE, "pause", &Ledger::pause_seconds, &Ledger::set_pause_seconds},
    {Ledger::CAUSE_STOP, "stop", &Ledger::stop_seconds, &Ledger::set_stop_seconds},
    {Ledger::CAUSE_OTHER, "other", &Ledger::other_seconds, &Ledger::set_other_seconds},
};
static_assert(std::size(kAccounts) == Ledger::Cause_ARRAYSIZE - 1);

// Causes of newer releases have no account here.
const Account& AccountOf(Ledger::Cause cause) {
  for (const Account& account : kAccounts) {
    if (account.cause == cause) return account;
  }
  return kAccounts[std::size(kAccounts) - 1];
}

void Add(Ledger::Cause to, double seconds, Ledger* ledger) {
  const Account& account = AccountOf(to);
  (ledger->*account.set)((ledger->*account.get)() + seconds);
}

// Takes up to `seconds` from the account; returns the amount.
double Take(Ledger::Cause from, double seconds, Ledger* ledger) {
  const Account& account = AccountOf(from);
  const double held = (ledger->*account.get)();
  const double taken = std::clamp(seconds, 0.0, held);
  (ledger->*account.set)(held - taken);
  return taken;
}

// Moves time out of the provisional causes. An attempt completes steps before all ranks are known to be
// ready, and saves while it exits.
double Move(Ledger::Cause to, double seconds, Ledger* ledger) {
  double moved = Take(Ledger::CAUSE_OTHER, seconds, ledger);
  for (const Ledger::Cause from : {Ledger::CAUSE_START, Ledger::CAUSE_STOP}) {
    if (ledger->cause() == from) moved += Take(from, seconds - moved, ledger);
  }
  Add(to, moved, ledger);
  return moved;
}

bool Ended(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

Ledger::Cause CauseIn(v1::JobState state, bool retried) {
  switch (state) {
    case v1::JOB_STATE_QUEUED:
      return retried ? Ledger::CAUSE_RESTART : Ledger::CAUSE_QUEUE;
    case v1::JOB_STATE_PREFLIGHT:
      return Ledger::CAUSE_PREFLIGHT;
    case v1::JOB_STATE_STARTING:
      return Ledger::CAUSE_START;
    case v1::JOB_STATE_STOPPING:
      return Ledger::CAUSE_RESTART;
    case v1::JOB_STATE_PAUSING:
    case v1::JOB_STATE_CANCELLING:
      return Ledger::CAUSE_STOP;
    case v1::JOB_STATE_PAUSED:
    case v1::JOB_STATE_SUCCEEDED:
    case v1::JOB_STATE_FAILED:
    case v1::JOB_STATE_CANCELLED:
      return Ledger::CAUSE_PAUSE;
    default:
      return Ledger::CAUSE_OTHER;
  }
}

// Adds the time until `now` to the current cause.
Ledger* Flow(int64_t now_unix_nanos, Job* job) {
  Ledger* ledger = job->mutable_ledger();
  if (ledger->until_unix_nanos() == 0) {
    ledger->set_until_unix_nanos(job->create_unix_nanos());
    // Launched by an older release: its earlier causes are unknown.
    ledger->set_cause(job->attempt() > 0 ? Ledger::CAUSE_OTHER : CauseIn(job->state(), /*retried=*/false));
  }
  const int64_t nanos = now_unix_nanos - ledger->until_unix_nanos();
  if (nanos <= 0) return ledger;
  Add(ledger->cause(), static_cast<double>(nanos) / 1e9, ledger);
  ledger->set_until_unix_nanos(now_unix_nanos);
  return ledger;
}

Ledger* Flow(absl::Time now, Job* job) { return Flow(absl::ToUnixNanos(now), job); }

}  // namespace

std::vector<LedgerShare> SharesOf(const Ledger& ledger) {
  std::vector<LedgerShare> shares;
  for (const Account& account : kAccounts) shares.push_back({account.name, (ledger.*account.get)()});
  return shares;
}

double SecondsOf(const Ledger& ledger) {
  double all = 0;
  for (const LedgerShare& share : SharesOf(ledger)) all += share.seconds;
  return all;
}

void BeginLedger(absl::Time now, Job* job) {
  if (job->has_ledger()) return;
  job->mutable_ledger()->set_until_unix_nanos(absl::ToUnixNanos(now));
  job->mutable_ledger()->set_cause(CauseIn(job->state(), /*retried=*/false));
}

void ResumeLedger(absl::Time now, Job* job) {
  // The date may have been set back between two coordinators: continue from now instead of waiting for the
  // old date.
  if (job->ledger().until_unix_nanos() > absl::ToUnixNanos(now))
    job->mutable_ledger()->set_until_unix_nanos(absl::ToUnixNanos(now));
}

void AdvanceLedger(absl::Time now, Job* job) {
  if (!Ended(job->state())) Flow(now, job);
}

void AdvanceLedger(absl::Time now, v1::JobState next, bool retried, Job* job) {
  Ledger* ledger = Flow(now, job);
  // A job that waits for a retry gets a new reason; nothing else has changed.
  if (next == job->state() && ledger->cause() != Ledger::CAUSE_UNSPECIFIED) return;
  ledger->set_cause(CauseIn(next, retried));
}

void EndLedger(absl::Time end, Job* job) {
  // The end of ranks may be reported late. Time after the end is removed, from the newest causes first.
  Ledger* ledger = job->mutable_ledger();
  const int64_t end_unix_nanos = absl::ToUnixNanos(end);
  const int64_t over_nanos = ledger->until_unix_nanos() - end_unix_nanos;
  if (over_nanos <= 0 || ledger->until_unix_nanos() == 0) {
    Flow(end_unix_nanos, job);
    return;
  }
  double over = static_cast<double>(over_nanos) / 1e9;
  std::vector<Ledger::Cause> newest = {Ledger::CAUSE_OTHER, Ledger::CAUSE_STOP, Ledger::CAUSE_RESTART,
                                       Ledger::CAUSE_START};
  for (const Account& account : kAccounts) newest.push_back(account.cause);
  for (const Ledger::Cause cause : newest) over -= Take(cause, over, ledger);
  // If the date was set between the end and its report, the end may precede the job's admission. All causes
  // are then empty, and the ledger ends where it started.
  ledger->set_until_unix_nanos(end_unix_nanos + static_cast<int64_t>(over * 1e9));
}

void MoveStep(const v1::StepReport& before, const v1::StepReport& step, absl::Time now, Job* job) {
  Ledger* ledger = Flow(now, job);
  const int64_t last = std::max(before.step(), job->restored().step());
  // For the first report of an attempt that started under another coordinator, the earlier steps are unknown.
  const int64_t steps = std::max<int64_t>(1, step.step() - last);
  const int64_t again = std::clamp<int64_t>(ledger->newest_step() - (step.step() - steps), 0, steps);
  Move(Ledger::CAUSE_REPLAY, static_cast<double>(again) * step.step_seconds(), ledger);
  const double fresh = static_cast<double>(steps - again);
  const double seconds = std::max(0.0, step.step_seconds());
  const double exposed = std::clamp(step.exposed_seconds(), 0.0, seconds);
  Move(Ledger::CAUSE_EXPOSED, fresh * exposed, ledger);
  Move(Ledger::CAUSE_STEP, fresh * (seconds - exposed), ledger);
  ledger->set_newest_step(std::max(ledger->newest_step(), step.step()));
}

void MoveSave(const v1::SavedCheckpoint& saved, absl::Time now, Job* job) {
  Move(Ledger::CAUSE_SAVE, saved.stall_seconds(), Flow(now, job));
}

void MoveLoad(const v1::RestoredCheckpoint& restored, absl::Time now, Job* job) {
  Ledger* ledger = Flow(now, job);
  Add(Ledger::CAUSE_LOAD, Take(Ledger::CAUSE_START, restored.seconds(), ledger), ledger);
}

void MoveHang(const Job::Hang& hang, Job* job) {
  // The attempt's end is in the ledger already. An attempt that hung before all ranks were ready only has a
  // start.
  Ledger* ledger = job->mutable_ledger();
  const double seconds = static_cast<double>(hang.no_progress_ms()) / 1e3;
  double moved = Take(Ledger::CAUSE_OTHER, seconds, ledger);
  moved += Take(Ledger::CAUSE_START, seconds - moved, ledger);
  Add(Ledger::CAUSE_HANG, moved, ledger);
}

}  // namespace fsdpd
