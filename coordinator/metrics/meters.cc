#include "coordinator/metrics/meters.h"

#include <absl/strings/ascii.h>

#include <numeric>
#include <optional>

#include "coordinator/job/job_machine.h"
#include "coordinator/job/recovery.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

const char* NameOf(Meters::Submit outcome) {
  switch (outcome) {
    case Meters::Submit::kAccepted:
      return "accepted";
    case Meters::Submit::kRepeated:
      return "repeated";
    case Meters::Submit::kRefused:
      return "refused";
    case Meters::Submit::kFailed:
      return "failed";
  }
  return "?";
}

std::string NameOf(v1::FailureCause cause) {
  constexpr size_t kPrefix = sizeof("FAILURE_CAUSE_") - 1;
  const std::string name = v1::FailureCause_Name(cause);
  return name.size() > kPrefix ? absl::AsciiStrToLower(name.substr(kPrefix)) : "unspecified";
}

constexpr const char* kInPlace = "in_place";
constexpr const char* kMoved = "moved";
constexpr const char* kResized = "resized";

std::map<std::string, int32_t> RanksByNode(const v1::Job& job) {
  std::map<std::string, int32_t> ranks;
  for (const v1::Job::Placement& placement : job.placements()) ranks[placement.node()] += placement.ranks();
  return ranks;
}

// Classifies a restart by its placement relative to the previous launch.
const char* ModeOf(const v1::Job& before, const v1::Job& after) {
  const std::map<std::string, int32_t> from = RanksByNode(before), to = RanksByNode(after);
  const auto add = [](int32_t sum, const auto& node) { return sum + node.second; };
  if (std::accumulate(from.begin(), from.end(), 0, add) != std::accumulate(to.begin(), to.end(), 0, add))
    return kResized;
  return from == to ? kInPlace : kMoved;
}

// Excludes answers about the state itself, such as NOT_FOUND.
bool IsStoreError(absl::StatusCode code) {
  return code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kDataLoss ||
         code == absl::StatusCode::kUnavailable;
}

// Returns when the current run of consecutive events with matching states began.
template <typename InStretch>
std::optional<int64_t> BeginOf(const v1::Job& job, InStretch in_stretch) {
  std::optional<int64_t> begin;
  for (int i = job.events_size() - 1; i >= 0 && in_stretch(job.events(i).state()); --i)
    begin = job.events(i).unix_nanos();
  return begin;
}

bool IsQueued(v1::JobState state) {
  return state == v1::JOB_STATE_QUEUED || state == v1::JOB_STATE_PREFLIGHT;
}

}  // namespace

// Known series start at zero, so that Prometheus sees the first event as an increase.
Meters::Meters() {
  for (const Submit each : {Submit::kAccepted, Submit::kRepeated, Submit::kRefused, Submit::kFailed})
    submits_[NameOf(each)] = 0;
  for (const v1::JobState state : AllJobStates()) transitions_[ShortName(state)] = 0;
  for (int number = v1::FailureCause_MIN + 1; number <= v1::FailureCause_MAX; ++number) {
    const std::string cause = NameOf(static_cast<v1::FailureCause>(number));
    failures_[cause] = 0;
    for (const char* mode : {kInPlace, kMoved, kResized}) restarts_[{cause, mode}] = 0;
  }
  for (const char* phase : kRecoveryPhases) recoveries_.try_emplace(phase, kRecoveryBounds);
  for (const RuleText& rule : AllRules()) refusals_[rule.id] = 0;
  for (const char* kind : kRefusedKinds) refused_from_agents_[kind] = 0;
}

void Meters::Called(const std::string& method, absl::StatusCode code, absl::Duration took) {
  MutexLock lock(&mutex_);
  calls_.try_emplace({method, code}, kCallBounds).first->second.Add(absl::ToDoubleSeconds(took));
}

void Meters::Opened(const std::string& method) {
  MutexLock lock(&mutex_);
  ++open_streams_[method];
}

void Meters::Closed(const std::string& method, absl::StatusCode code) {
  MutexLock lock(&mutex_);
  --open_streams_[method];
  ++streams_[{method, code}];
}

void Meters::Submitted(Submit outcome) {
  MutexLock lock(&mutex_);
  ++submits_[NameOf(outcome)];
}

void Meters::Refused(const std::string& rule) {
  MutexLock lock(&mutex_);
  ++refusals_[rule];
}

void Meters::RefusedFromAgent(const std::string& kind) {
  MutexLock lock(&mutex_);
  ++refused_from_agents_[kind];
}

void Meters::RefusedRevoked() {
  MutexLock lock(&mutex_);
  ++refused_revoked_;
}

void Meters::Stored(const std::string& operation, absl::StatusCode code, absl::Duration took) {
  MutexLock lock(&mutex_);
  store_.try_emplace(operation, kStoreBounds).first->second.Add(absl::ToDoubleSeconds(took));
  // OUT_OF_RANGE: a spec that is too large to submit is its user's error, but a job that grew too large is
  // not stored.
  const bool grown = code == absl::StatusCode::kOutOfRange && operation != "Insert";
  store_errors_[operation] += IsStoreError(code) || grown ? 1 : 0;
}

void Meters::Ticked(absl::Duration took) {
  MutexLock lock(&mutex_);
  ticks_.Add(absl::ToDoubleSeconds(took));
}

void Meters::Changed(const v1::Job& before, const v1::Job& after) {
  if (before.state() == after.state()) return;
  const bool launched = after.state() == v1::JOB_STATE_STARTING;
  const bool failed = after.state() == v1::JOB_STATE_STOPPING;
  MutexLock lock(&mutex_);
  ++transitions_[ShortName(after.state())];
  if (failed) ++failures_[NameOf(after.failure().cause())];
  if (IsRestart(after)) ++restarts_[{NameOf(before.failure().cause()), ModeOf(before, after)}];
  if (launched) {
    if (const auto queued = BeginOf(before, IsQueued))
      queue_waits_.Add(SecondsBetween(*queued, after.start_unix_nanos()));
  }
  if (before.state() == v1::JOB_STATE_RUNNING) {
    const auto left = absl::FromUnixNanos(after.events(after.events_size() - 1).unix_nanos());
    if (const auto replay = BrokenReplayOf(before, left)) recoveries_.at("replay").Add(*replay);
  }
  const auto recovery = RecoveryOf(after);
  if (!recovery.has_value()) return;
  for (const auto& [phase, seconds] : *recovery) recoveries_.at(phase).Add(seconds);
  if (HasNoReplay(after)) recoveries_.at("replay").Add(0);
}

void Meters::Stepped(const v1::Job& job, int64_t last, int64_t newest, absl::Time now) {
  const std::optional<double> replay = ReplayOf(job, last, newest, now);
  if (!replay.has_value()) return;
  MutexLock lock(&mutex_);
  recoveries_.at("replay").Add(*replay);
}

void Meters::AddTo(MetricSamples* samples) const {
  MutexLock lock(&mutex_);
  for (const auto& [key, histogram] : calls_)
    samples->Add("fsdpd_rpc_seconds", histogram,
                 {{"method", key.first}, {"code", absl::StatusCodeToString(key.second)}});
  for (const auto& [key, count] : streams_)
    samples->Add("fsdpd_stream_calls_total", count,
                 {{"method", key.first}, {"code", absl::StatusCodeToString(key.second)}});
  for (const auto& [key, count] : restarts_)
    samples->Add("fsdpd_job_restarts_total", count, {{"cause", key.first}, {"mode", key.second}});
  for (const auto& [operation, histogram] : store_)
    samples->Add("fsdpd_store_seconds", histogram, {{"operation", operation}});
  for (const auto& [phase, histogram] : recoveries_)
    samples->Add("fsdpd_recovery_seconds", histogram, {{"phase", phase}});
  const auto add_counts = [&](const char* name, const char* label, const Counts& counts) {
    for (const auto& [value, count] : counts) samples->Add(name, count, {{label, value}});
  };
  add_counts("fsdpd_open_streams", "method", open_streams_);
  add_counts("fsdpd_submits_total", "outcome", submits_);
  add_counts("fsdpd_submit_violations_total", "rule", refusals_);
  add_counts("fsdpd_agent_messages_rejected_total", "kind", refused_from_agents_);
  add_counts("fsdpd_job_transitions_total", "to", transitions_);
  add_counts("fsdpd_job_failures_total", "cause", failures_);
  add_counts("fsdpd_store_errors_total", "operation", store_errors_);
  samples->Add("fsdpd_revoked_agent_streams_total", refused_revoked_);
  samples->Add("fsdpd_tick_seconds", ticks_);
  samples->Add("fsdpd_queue_wait_seconds", queue_waits_);
}

std::vector<prometheus::MetricFamily> Meters::Collect() const {
  MetricSamples samples(CoordinatorMetrics());
  std::vector<prometheus::MetricFamily> families;
  AddTo(&samples);
  samples.MoveTo(&families);
  return families;
}

}  // namespace fsdpd
