// Relay of ranks' trace results from agents' streams to the API calls that requested the traces.
//
// A wait accepts one result per rank and step of its order, only from the node that hosts the rank, which
// bounds its memory. Results that no wait expects are dropped.
//
// Thread-safe. Ownership: the caller of Open() owns the wait; the relay holds a weak reference.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "coordinator/job/attempt_ref.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

class TraceWait {
 public:
  // Blocks at most `timeout`. Returns the results since the previous call.
  std::vector<v1::TraceJobResponse::Trace> Next(absl::Duration timeout);
  // Number of rank-step pairs without a result.
  int64_t missing() const;

 private:
  friend class TraceRelay;
  TraceWait(const v1::Job& job, const v1::TraceJobResponse::Order& order);
  void Take(const std::string& node, const v1::TraceResult& traced);

  const AttemptRef attempt_;
  const v1::TraceJobResponse::Order order_;
  int64_t ranks_ = 0;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<v1::TraceJobResponse::Trace> reported_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<int32_t, int64_t>> known_ ABSL_GUARDED_BY(mutex_);  // Rank and step.
};

class TraceRelay {
 public:
  // REQUIRES: the job has its placements. Call before the order is sent to the ranks.
  std::shared_ptr<TraceWait> Open(const v1::Job& job, const v1::TraceJobResponse::Order& order);

  // From agents' streams. REQUIRES: AttemptHosts (attempt_hosts.h) accepted it.
  void Take(const std::string& node, const v1::TraceResult& traced);

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<TraceWait>> waits_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
