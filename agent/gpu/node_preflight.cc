#include "agent/gpu/node_preflight.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/rank/exit_code.h"
#include "base/text.h"

namespace fsdpd {
int Preflight::Ranks() const {
  return options_.device == v1::DEVICE_CPU ? std::min(options_.slots, kMaxCpuRanks) : options_.slots;
}

v1::Launch Preflight::LaunchFor(int attempt) const {
  v1::Launch launch;
  launch.set_job_id(kPreflightJob);
  launch.set_attempt(attempt);
  launch.mutable_spec()->mutable_resources()->set_device(options_.device);
  launch.mutable_spec()->mutable_restart()->set_hang_seconds(0);  // The time limit ends hangs.
  launch.set_world_size(Ranks());
  launch.set_ranks(Ranks());
  for (int device = 0; device < Ranks(); ++device) launch.add_devices(device);
  return launch;
}

void Preflight::Begin(const v1::PreflightOrder& order) {
  const absl::Duration limit = absl::Milliseconds(order.limit_ms());
  MutexLock lock(&mutex_);
  result_.set_number(order.number());
  if (running_) return;
  running_ = true;
  begun_ = clock_->Now();
  limit_ = limit;
  ++attempt_.attempt;  // Numbered from 1 in each run of the agent: logs of an earlier run are appended to.
  for (int device = 0; device < Ranks() && gpus_ != nullptr; ++device)
    gpus_->Describe(device, &described_[device]);
  LogInfo("preflight started number=%d ranks=%d", order.number(), Ranks());
  supervisor_->Launch(LaunchFor(attempt_.attempt), limit);
}

void Preflight::Measured(const RankId& id, const v1::PreflightDevice& device) {
  MutexLock lock(&mutex_);
  if (!running_ || !(id.of == attempt_)) return;
  v1::PreflightDevice result = device;
  if (gpus_ != nullptr)
    gpus_->Ran(device.device(), absl::FromUnixNanos(device.begin_unix_nanos()),
               absl::FromUnixNanos(device.end_unix_nanos()), &result);
  result.MergeFrom(described_[device.device()]);
  measured_[id.rank] = std::move(result);
}

void Preflight::Exited(const RankId& id, const v1::RankExit& exit) {
  MutexLock lock(&mutex_);
  if (!running_ || !(id.of == attempt_) || exit.cancelled()) return;
  const bool refused = exit.exit_code() == kRefusedExitCode && !exit.has_error_class();
  if (refused) result_.set_refused(exit.error());
  const bool failed = exit.signal() != 0 || exit.exit_code() != 0 || !exit.error().empty();
  const bool overdue = clock_->Now() - begun_ >= limit_;
  if (failed && !refused && !overdue && !exit.peer_failed() && result_.error().empty()) {
    const std::string how = !exit.error().empty() ? exit.error()
                            : exit.signal() != 0  ? absl::StrCat("ended by signal ", exit.signal())
                                                  : absl::StrCat("exit code ", exit.exit_code());
    result_.set_error(absl::StrCat("device ", id.rank, ": ", how));
  }
  // A refused launch has no processes, so Gone() does not follow.
  refused_ranks_ += exit.exit_code() == kRefusedExitCode ? 1 : 0;
  if (refused_ranks_ == Ranks()) Finish();
}

void Preflight::Gone(const AttemptId& id, bool stopped) {
  MutexLock lock(&mutex_);
  if (!running_ || !(id == attempt_)) return;
  if (stopped) result_.set_refused("the preflight was stopped before it completed");
  Finish();
}

void Preflight::Finish() {
  const absl::Duration took = clock_->Now() - begun_;
  result_.set_seconds(absl::ToDoubleSeconds(took));
  std::vector<int> missing;
  for (int rank = 0; rank < Ranks(); ++rank) {
    if (measured_.count(rank) == 0) missing.push_back(rank);
  }
  if (!missing.empty() && result_.error().empty() && result_.refused().empty())
    result_.set_error(absl::StrCat(missing.size() == 1 ? "device " : "devices ", absl::StrJoin(missing, ", "),
                                   missing.size() == 1 ? " was" : " were", " not done after ",
                                   HumanSeconds(absl::ToDoubleSeconds(took))));
  for (auto& [rank, device] : measured_) *result_.add_devices() = std::move(device);
  LogInfo("preflight ended number=%d seconds=%.1f devices=%d error=%s%s", result_.number(), result_.seconds(),
          result_.devices_size(), result_.error(), result_.refused());
  running_ = false;
  described_.clear();
  measured_.clear();
  refused_ranks_ = 0;
  send_(std::exchange(result_, {}));
}

}  // namespace fsdpd
