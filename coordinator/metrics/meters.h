// Counters and histograms of the coordinator for /metrics: API calls, store operations, ticks, and outcomes
// of jobs. Meters outlive a term of leadership (replica.h), so counters do not reset. Label values come from
// fixed sets in the code (methods, codes, rules, states, causes), never from clients, which bounds the
// series.
//
// Thread-safe; the lock is held only for a few additions.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>
#include <prometheus/metric_family.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/process/metric.h"
#include "coordinator/metrics/coordinator_metrics.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Values of fsdpd_agent_messages_rejected_total's label `kind`.
constexpr const char* kRefusedKinds[] = {"compute_times", "log",     "preflight", "rank", "registration",
                                         "rendezvous",    "stopped", "stream",    "trace"};

class Meters {
 public:
  enum class Submit { kAccepted, kRepeated, kRefused, kFailed };

  Meters();

  // A call of a public API method. Streams use Opened() and Closed().
  void Called(const std::string& method, absl::StatusCode code, absl::Duration took);
  void Opened(const std::string& method);
  void Closed(const std::string& method, absl::StatusCode code);
  void Submitted(Submit outcome);
  void Refused(const std::string& rule);
  void RefusedFromAgent(const std::string& kind);  // One of kRefusedKinds.
  void RefusedRevoked();                           // An agent's stream.
  void Stored(const std::string& operation, absl::StatusCode code, absl::Duration took);
  void Ticked(absl::Duration took);
  // Has no effect if the state is the same.
  void Changed(const v1::Job& before, const v1::Job& after);
  // The job received a step report. `last` and `newest` are those of ReplayOf() (recovery.h).
  void Stepped(const v1::Job& job, int64_t last, int64_t newest, absl::Time now);

  void AddTo(MetricSamples* samples) const;
  std::vector<prometheus::MetricFamily> Collect() const;  // For tests.

 private:
  using CallKey = std::pair<std::string, absl::StatusCode>;
  using Counts = std::map<std::string, double>;

  mutable Mutex mutex_;
  std::map<CallKey, Histogram> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<CallKey, double> streams_ ABSL_GUARDED_BY(mutex_);
  Counts open_streams_ ABSL_GUARDED_BY(mutex_);
  Counts submits_ ABSL_GUARDED_BY(mutex_);
  Counts refusals_ ABSL_GUARDED_BY(mutex_);
  Counts refused_from_agents_ ABSL_GUARDED_BY(mutex_);
  double refused_revoked_ ABSL_GUARDED_BY(mutex_) = 0;
  Counts transitions_ ABSL_GUARDED_BY(mutex_);
  Counts failures_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, std::string>, double> restarts_ ABSL_GUARDED_BY(mutex_);  // Cause, mode.
  std::map<std::string, Histogram> store_ ABSL_GUARDED_BY(mutex_);
  Counts store_errors_ ABSL_GUARDED_BY(mutex_);
  Histogram ticks_ ABSL_GUARDED_BY(mutex_){kTickBounds};
  Histogram queue_waits_ ABSL_GUARDED_BY(mutex_){kQueueBounds};
  std::map<std::string, Histogram> recoveries_ ABSL_GUARDED_BY(mutex_);  // By phase.
};

}  // namespace fsdpd
