// Simulated agent with the messages of a real one on a separate connection. It registers, "runs" launched
// attempts, reports rank 0's steps once per second and compute times of its ranks as often as a real agent,
// sends heartbeats, and reconnects with the real back-off. After a reconnect it reports its attempts, and
// repeats recent exits. It has no ranks and no thread, so thousands fit into one process.
//
// One thread calls Tick(), Drop() and Finish(). gRPC's threads deliver messages of the coordinator.
#pragma once

#include <absl/time/time.h>
#include <grpcpp/grpcpp.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/link/backoff.h"
#include "agent/metrics/compute_times.h"
#include "base/mutex.h"
#include "proto/fsdpd/v1/agent.grpc.pb.h"

namespace fsdpd::perf {

class FleetAgent {
 public:
  struct Options {
    std::string coordinator;
    std::string node;
    int slots = 8;
    absl::Duration step = absl::Seconds(1);
    uint32_t seed = 0;
  };

  explicit FleetAgent(Options options);
  ~FleetAgent();

  // Does the work that is due: a heartbeat, reports, a new stream after one that has ended.
  void Tick(absl::Time now);
  // Closes the connection without a goodbye, as when a switch restarts.
  void Drop();
  // Ends all ranks of an attempt normally, even without a connection. Returns false if no attempt runs here.
  bool Finish(absl::Time now);

  struct Counts {
    bool attached = false;
    int attempts = 0;
    int64_t reports = 0;
    int64_t streams = 0;
  };
  Counts counts() const;

 private:
  class Call;
  using Ref = std::pair<std::string, int>;  // Job and attempt.
  struct Hosted {
    int first_rank = 0, ranks = 0, world = 0;
    int64_t step = 0;
    absl::Time due;
  };
  struct Past {
    absl::Time time;
    Ref ref;
    v1::AgentMessage message;
  };

  v1::AgentMessage Registration() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Received(const v1::CoordinatorMessage& message);
  void Launched(const v1::Launch& launch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Ended(const Ref& ref, int code, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyReady(const Ref& ref, const Hosted& hosted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellComputeTimes(const Ref& ref, const Hosted& hosted, const v1::StepReport& report, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Report(const Ref& ref, Hosted* hosted, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(v1::AgentMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AgentLink::Stub> stub_;
  Backoff backoff_;
  absl::Time retry_at_ = absl::InfinitePast();
  mutable Mutex mutex_;
  std::unique_ptr<Call> call_;
  int64_t stream_generation_ ABSL_GUARDED_BY(mutex_) = 0;  // 0 before the welcome message.
  absl::Time heartbeat_due_ ABSL_GUARDED_BY(mutex_);
  std::map<Ref, Hosted> hosted_ ABSL_GUARDED_BY(mutex_);
  std::deque<Past> past_ ABSL_GUARDED_BY(mutex_);  // Recent exits and ends of attempts.
  ComputeTimes compute_times_ ABSL_GUARDED_BY(mutex_);
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd::perf
