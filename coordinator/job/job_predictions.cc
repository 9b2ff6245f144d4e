#include "coordinator/job/job_predictions.h"

#include <absl/status/statusor.h>

#include "base/check_guard.h"
#include "base/log.h"
#include "fsdp/plan/prediction.h"

namespace fsdpd {
namespace {

std::optional<v1::Prediction> Predict(const v1::Job& job) {
  std::optional<v1::Prediction> prediction;
  const absl::Status guarded = GuardChecks([&] {
    const absl::StatusOr<Plan> plan = AcceptedPlan(job.resolved());
    if (!plan.ok())
      return LogWarning("step-time prediction failed job=%s error=%s", job.id(), plan.status().message());
    v1::Plan proto;
    AddPrediction(*plan, DefaultProfile(plan->spec.device), /*timeline=*/false, &proto);
    prediction = proto.prediction();
  });
  if (!guarded.ok()) LogWarning("step-time prediction failed job=%s error=%s", job.id(), guarded.message());
  return prediction;
}

}  // namespace

JobPredictions::~JobPredictions() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::map<std::string, v1::Prediction> JobPredictions::Of(const Jobs& jobs) {
  MutexLock lock(&mutex_);
  std::map<Key, std::optional<v1::Prediction>> known;
  std::map<std::string, v1::Prediction> found;
  wanted_.clear();
  for (const auto& job : jobs) {
    if (!job->has_resolved()) continue;  // Launched by a coordinator of an older release.
    const Key key(job->id(), job->attempt());
    const auto had = known_.find(key);
    if (had == known_.end()) {
      wanted_[key] = job;
      continue;
    }
    if (had->second.has_value()) found[job->id()] = *had->second;
    known.insert(*had);
  }
  known_ = std::move(known);
  if (!wanted_.empty() && !thread_.joinable()) thread_ = std::thread([this] { Serve(); });
  changed_.SignalAll();
  return found;
}

void JobPredictions::AwaitAll() {
  MutexLock lock(&mutex_);
  while (!wanted_.empty()) changed_.Wait(&mutex_);
}

void JobPredictions::Serve() {
  while (true) {
    std::shared_ptr<const v1::Job> job;
    {
      MutexLock lock(&mutex_);
      while (!ending_ && wanted_.empty()) changed_.Wait(&mutex_);
      if (ending_) return;
      job = wanted_.begin()->second;
    }
    std::optional<v1::Prediction> prediction = Predict(*job);
    MutexLock lock(&mutex_);
    const Key key(job->id(), job->attempt());
    wanted_.erase(key);
    known_[key] = std::move(prediction);  // If no longer wanted, the next scrape drops it.
    changed_.SignalAll();
  }
}

double MfuOf(const v1::Prediction& prediction, double step_seconds) {
  return step_seconds > 0 ? prediction.mfu() * prediction.step_seconds() / step_seconds : 0;
}

}  // namespace fsdpd
