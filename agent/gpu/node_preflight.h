// Preflight of the node: measures its devices when the coordinator requests it. It launches one rank per
// device like a job; the coordinator requests it only while the node is idle. Readings of the driver are
// added (gpu_watch.h). On CPU nodes the number of ranks is that of the slots, at most kMaxCpuRanks.
//
//   Begin -> the supervisor launches the attempt -> Measured ..., Exited ... -> Gone -> `send`, once
//
// The supervisor ends ranks that exceed the time limit, and the preflight fails. An attempt that is stopped,
// for example because the agent exits, has no result. A second request while one is running takes over the
// running attempt.
//
// Thread-safe.
#pragma once

#include <absl/time/time.h>

#include <functional>
#include <map>

#include "agent/gpu/gpu_watch.h"
#include "agent/launch/attempt.h"
#include "agent/ranks/rank_supervisor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

class Preflight {
 public:
  // With more ranks on few cores, pairwise bandwidth would measure the scheduler.
  static constexpr int kMaxCpuRanks = 4;

  struct Options {
    v1::Device device = v1::DEVICE_CPU;
    int slots = 1;
  };
  using Send = std::function<void(v1::PreflightResult)>;

  // `gpus` may be null. All pointers must outlive this object.
  Preflight(Options options, RankSupervisor* supervisor, const GpuWatch* gpus, Clock* clock, Send send)
      : options_(options), supervisor_(supervisor), gpus_(gpus), clock_(clock), send_(std::move(send)) {}

  void Begin(const v1::PreflightOrder& order);

  // Events of the supervisor for attempts with IsPreflight().
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
  AttemptId attempt_ ABSL_GUARDED_BY(mutex_) = {kPreflightJob, 0};  // The newest attempt.
  absl::Time begun_ ABSL_GUARDED_BY(mutex_);
  absl::Duration limit_ ABSL_GUARDED_BY(mutex_);
  std::map<int, v1::PreflightDevice> described_ ABSL_GUARDED_BY(mutex_);  // By device, read before the start.
  std::map<int, v1::PreflightDevice> measured_ ABSL_GUARDED_BY(mutex_);   // By rank.
  int refused_ranks_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::PreflightResult result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
