#include "coordinator/job/recovery.h"

#include <algorithm>

namespace fsdpd {
namespace {

using Events = google::protobuf::RepeatedPtrField<v1::Job::Event>;

const char* PhaseIn(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_STOPPING:
      return "stop";
    case v1::JOB_STATE_QUEUED:
      return "queue";
    case v1::JOB_STATE_PREFLIGHT:
      return "preflight";
    case v1::JOB_STATE_STARTING:
      return "start";
    default:
      return nullptr;
  }
}

// Returns the index of the failure that leads to the events before `end`, if no user action is in between.
std::optional<int> FailedBefore(const Events& events, int end) {
  int failed = end;
  while (failed > 0 && PhaseIn(events[failed - 1].state()) != nullptr) --failed;
  while (failed < end && events[failed].state() != v1::JOB_STATE_STOPPING) ++failed;
  if (failed == end) return std::nullopt;
  return failed;
}

// Indices of the failure and of the event that all ranks are ready.
struct Stretch {
  int failed, up;
};

std::optional<Stretch> StretchOf(const Events& events) {
  int up = events.size();
  while (up > 0 && events[up - 1].state() == v1::JOB_STATE_RUNNING) --up;
  if (up == events.size()) return std::nullopt;
  const std::optional<int> failed = FailedBefore(events, up);
  if (!failed.has_value()) return std::nullopt;
  return Stretch{*failed, up};
}

}  // namespace

double SecondsBetween(int64_t begin_unix_nanos, int64_t end_unix_nanos) {
  return static_cast<double>(std::max<int64_t>(0, end_unix_nanos - begin_unix_nanos)) / 1e9;
}

namespace {

// Time since all ranks were ready, for an attempt that follows a failure.
std::optional<double> SinceUp(const v1::Job& job, absl::Time now) {
  const std::optional<Stretch> stretch = StretchOf(job.events());
  if (!stretch.has_value()) return std::nullopt;
  return SecondsBetween(job.events(stretch->up).unix_nanos(), absl::ToUnixNanos(now));
}

}  // namespace

bool IsRestart(const v1::Job& job) {
  return job.state() == v1::JOB_STATE_STARTING && FailedBefore(job.events(), job.events_size()).has_value();
}

std::optional<std::map<std::string, double>> RecoveryOf(const v1::Job& job) {
  const std::optional<Stretch> stretch = StretchOf(job.events());
  if (!stretch.has_value()) return std::nullopt;
  std::map<std::string, double> seconds = {{"stop", 0}, {"queue", 0}, {"preflight", 0}, {"start", 0}};
  for (int i = stretch->failed; i < stretch->up; ++i) {
    const v1::Job::Event &event = job.events(i), &next = job.events(i + 1);
    seconds[PhaseIn(event.state())] += SecondsBetween(event.unix_nanos(), next.unix_nanos());
  }
  // The rank reports its loading time; the rest of STARTING is the start.
  seconds["load"] = std::clamp(job.restored().seconds(), 0.0, seconds["start"]);
  seconds["start"] -= seconds["load"];
  return seconds;
}

bool HasNoReplay(const v1::Job& job) {
  return std::max(job.restored().step(), job.last_step().step()) >= job.ledger().newest_step();
}

std::optional<double> BrokenReplayOf(const v1::Job& job, absl::Time now) {
  if (HasNoReplay(job)) return std::nullopt;
  return SinceUp(job, now);
}

std::optional<double> ReplayOf(const v1::Job& job, int64_t last, int64_t newest, absl::Time now) {
  const bool lost = job.restored().step() < newest;
  if (!lost || last >= newest || job.last_step().step() < newest) return std::nullopt;
  return SinceUp(job, now);
}

}  // namespace fsdpd
