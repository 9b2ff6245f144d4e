// An agent of which the coordinator sees what it sees of a real one, on a connection of its own: it
// registers, has what it is told to launch "run", reports rank 0's steps once a second and how long all its
// ranks computed as often as a real one does, sends heartbeats, comes back with the real one's back-off and
// says then what it hosts, and once more what had happened of late. There are no ranks behind it, and no
// thread: thousands fit into one process.
//
// One thread calls Tick(), Drop() and Finish(); gRPC's threads bring what the coordinator says.
#pragma once

#include <absl/time/time.h>
#include <grpcpp/grpcpp.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/backoff.h"
#include "agent/compute_times.h"
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

  // What is due: a heartbeat, reports, a stream instead of one that has ended.
  void Tick(absl::Time now);
  // The connection is gone at once, as when a switch restarts.
  void Drop();
  // All ranks of an attempt that runs here end in order; false where there is none. Also while nobody
  // listens.
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
  using Ref = std::pair<std::string, int>;  // A job and its attempt.
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
  void TellReady(const Ref& ref, const Hosted& hosted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellComputeTimes(const Ref& ref, const Hosted& hosted, const v1::StepReport& report, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Report(const Ref& ref, Hosted* hosted, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Say(v1::AgentMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AgentLink::Stub> stub_;
  Backoff backoff_;
  absl::Time retry_at_ = absl::InfinitePast();
  mutable Mutex mutex_;
  std::unique_ptr<Call> call_;
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: not welcome yet.
  absl::Time heartbeat_due_ ABSL_GUARDED_BY(mutex_);
  std::map<Ref, Hosted> hosted_ ABSL_GUARDED_BY(mutex_);
  std::deque<Past> past_ ABSL_GUARDED_BY(mutex_);  // Exits and ends of late.
  ComputeTimes compute_times_ ABSL_GUARDED_BY(mutex_);
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd::perf
