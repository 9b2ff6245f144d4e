// What a step of a launched job was predicted to take, for its metrics: what a plan (fsdp/plan/prediction.h)
// says of the spec that the attempt runs, with the profile that is shipped for its device. It follows from
// the job as it is stored, so it is kept in memory alone, and whoever leads next makes it again. A large
// model's takes seconds, which neither a scrape nor the thread that changes jobs waits for: a thread makes
// one after the other, and what is not there yet is there at a later scrape.
//
// Thread-safe, and no lock is held while a plan is made.
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
  // Waits for the plan that is being made.
  ~JobPredictions();

  // Of the newest attempts of `jobs`, by id, as far as they are known; the others are made from now on. What
  // is not asked for is forgotten.
  std::map<std::string, v1::Prediction> Of(const Jobs& jobs);
  // Until all that were asked for are known.
  void AwaitAll();

 private:
  using Key = std::pair<std::string, int>;  // Id and attempt: fewer ranks have another plan.

  void Serve();

  Mutex mutex_;
  CondVar changed_;
  std::map<Key, std::optional<v1::Prediction>> known_ ABSL_GUARDED_BY(mutex_);    // Empty: none is to be had.
  std::map<Key, std::shared_ptr<const v1::Job>> wanted_ ABSL_GUARDED_BY(mutex_);  // And not known yet.
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // From the first that is wanted on.
};

// How much of what the device could compute at its peak a step used that took so long.
double MfuOf(const v1::Prediction& prediction, double step_seconds);

}  // namespace fsdpd
