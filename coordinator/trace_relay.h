// What ranks say of the traces that somebody asked for, on its way from agents' streams to who waits for it.
//
// A wait takes one word for each rank and step of its order, from the node that hosts the rank: that bounds
// what it holds. Words for which nobody waits are dropped.
//
// Thread-safe. Ownership: a wait belongs to who opened it; the relay knows it for as long as it is there.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "coordinator/attempt_ref.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

class TraceWait {
 public:
  // Waits at most `timeout` for something; what has come since the call before.
  std::vector<v1::TraceJobResponse::Trace> Next(absl::Duration timeout);
  // Of ranks and steps that have not said a word.
  int64_t missing() const;

 private:
  friend class TraceRelay;
  TraceWait(const v1::Job& job, const v1::TraceJobResponse::Order& order);
  void Take(const std::string& node, const v1::Traced& traced);

  const AttemptRef attempt_;
  const v1::TraceJobResponse::Order order_;
  int64_t ranks_ = 0;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<v1::TraceJobResponse::Trace> told_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<int32_t, int64_t>> known_ ABSL_GUARDED_BY(mutex_);  // Rank and step.
};

class TraceRelay {
 public:
  // REQUIRES: the job has its placements. To be opened before ranks are told.
  std::shared_ptr<TraceWait> Open(const v1::Job& job, const v1::TraceJobResponse::Order& order);

  // From agents' streams. REQUIRES: AttemptHosts (attempt_hosts.h) takes it.
  void Take(const std::string& node, const v1::Traced& traced);

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<TraceWait>> waits_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
