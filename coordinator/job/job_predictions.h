// Step-time predictions of launched jobs, for metrics: the prediction of the plan (fsdp/plan/prediction.h)
// for the spec that the attempt runs, with the shipped profile of its device. It is a function of the stored
// job, so it is only cached in memory, and a new leader recomputes it. A large model takes seconds, for which
// neither a scrape nor the reconciler's thread waits: a background thread computes one prediction after the
// other, and a later scrape shows the result.
//
// Thread-safe; no lock is held during the computation.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

class JobPredictions {
 public:
  using Jobs = std::vector<std::shared_ptr<const v1::Job>>;

  JobPredictions() = default;
  // Waits for the running computation.
  ~JobPredictions();

  // Known predictions for the newest attempts of `jobs`, by id; the missing ones are computed in the
  // background. Predictions of other jobs are dropped.
  std::map<std::string, v1::Prediction> Of(const Jobs& jobs);
  // Blocks until all requested predictions are known.
  void AwaitAll();

 private:
  using Key = std::pair<std::string, int>;  // Id and attempt: a plan for fewer ranks differs.

  void Serve();

  Mutex mutex_;
  CondVar changed_;
  std::map<Key, std::optional<v1::Prediction>> known_
      ABSL_GUARDED_BY(mutex_);  // nullopt: no prediction exists.
  std::map<Key, std::shared_ptr<const v1::Job>> wanted_ ABSL_GUARDED_BY(mutex_);  // Not computed yet.
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Started by the first request.
};

// Model FLOPs utilization (MFU) of a step that took `step_seconds`.
double MfuOf(const v1::Prediction& prediction, double step_seconds);

}  // namespace fsdpd
