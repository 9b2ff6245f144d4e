#include "coordinator/agents/trace_relay.h"

#include <algorithm>

namespace fsdpd {

TraceWait::TraceWait(const v1::Job& job, const v1::TraceJobResponse::Order& order)
    : attempt_{job.id(), job.attempt()}, order_(order) {
  for (const v1::Job::Placement& part : job.placements()) ranks_ += part.ranks();
}

std::vector<v1::TraceJobResponse::Trace> TraceWait::Next(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  if (reported_.empty()) changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(timeout));
  return std::exchange(reported_, {});
}

int64_t TraceWait::missing() const {
  MutexLock lock(&mutex_);
  return order_.steps() * ranks_ - static_cast<int64_t>(known_.size());
}

void TraceWait::Take(const std::string& node, const v1::TraceResult& traced) {
  const int64_t step = traced.trace().step();
  const bool of_order = step >= order_.first_step() && step < order_.first_step() + order_.steps();
  if (!(attempt_ == AttemptRef{traced.job_id(), traced.attempt()}) || !of_order) return;
  MutexLock lock(&mutex_);
  if (!known_.insert({traced.rank(), step}).second) return;
  v1::TraceJobResponse::Trace& told = reported_.emplace_back();
  told.set_node(node);
  told.set_rank(traced.rank());
  *told.mutable_trace() = traced.trace();
  changed_.SignalAll();
}

std::shared_ptr<TraceWait> TraceRelay::Open(const v1::Job& job, const v1::TraceJobResponse::Order& order) {
  const std::shared_ptr<TraceWait> wait(new TraceWait(job, order));
  MutexLock lock(&mutex_);
  waits_.erase(std::remove_if(waits_.begin(), waits_.end(), [](const auto& each) { return each.expired(); }),
               waits_.end());
  waits_.push_back(wait);
  return wait;
}

void TraceRelay::Take(const std::string& node, const v1::TraceResult& traced) {
  std::vector<std::shared_ptr<TraceWait>> waits;
  {
    MutexLock lock(&mutex_);
    for (const std::weak_ptr<TraceWait>& each : waits_) {
      if (std::shared_ptr<TraceWait> wait = each.lock()) waits.push_back(std::move(wait));
    }
  }
  for (const std::shared_ptr<TraceWait>& wait : waits) wait->Take(node, traced);
}

}  // namespace fsdpd
