// The node measures its devices because its coordinator asks: a rank on each of them, launched as a job's are
// and in nobody's way, as the coordinator asks only while nothing runs here. What the driver says of the
// devices is added (gpu_watch.h). On CPU as many ranks as there are slots, kMostCpuRanks at most.
//
//   Begin -> the supervisor launches the attempt -> Measured ..., Exited ... -> Gone -> `send`, once
//
// What is not done when its time is over is ended by the supervisor, and has failed. An attempt that somebody
// stops, as this agent does when it ends, has no result. A second order takes over what the first one began.
//
// Thread safety: all methods.
#pragma once

#include <absl/time/time.h>

#include <functional>
#include <map>
#include <string>

#include "agent/attempt.h"
#include "agent/gpu_watch.h"
#include "agent/rank_supervisor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

class Preflight {
 public:
  // Pairs of many ranks on few cores measure the scheduler.
  static constexpr int kMostCpuRanks = 4;

  struct Options {
    v1::Device device = v1::DEVICE_CPU;
    int slots = 1;
  };
  using Send = std::function<void(v1::PreflightResult)>;

  // `gpus` may be null. All outlive it.
  Preflight(Options options, RankSupervisor* supervisor, const GpuWatch* gpus, Clock* clock, Send send)
      : options_(options), supervisor_(supervisor), gpus_(gpus), clock_(clock), send_(std::move(send)) {}

  void Begin(const v1::PreflightOrder& order);

  // What the supervisor says of ranks of an attempt that IsPreflight().
  void Measured(const RankId& id, const v1::PreflightDevice& device);
  void Exited(const RankId& id, const v1::RankExit& exit);
  void Gone(const AttemptId& id, bool stopped);

 private:
  int Ranks() const;
  v1::Launch LaunchFor(int attempt) const;
  void Finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  RankSupervisor* const supervisor_;
  const GpuWatch* const gpus_;
  Clock* const clock_;
  const Send send_;

  Mutex mutex_;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  AttemptId attempt_ ABSL_GUARDED_BY(mutex_) = {kPreflightJob, 0};  // The newest.
  absl::Time begun_ ABSL_GUARDED_BY(mutex_);
  absl::Duration limit_ ABSL_GUARDED_BY(mutex_);
  std::map<int, v1::PreflightDevice> described_ ABSL_GUARDED_BY(mutex_);  // By device, before it began.
  std::map<int, v1::PreflightDevice> measured_ ABSL_GUARDED_BY(mutex_);   // By rank.
  int refused_ranks_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::PreflightResult result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
