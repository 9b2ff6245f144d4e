#include "coordinator/job/job_watch.h"

#include <algorithm>
#include <utility>

#include "coordinator/job/job_machine.h"
#include "coordinator/schedule/waiting.h"

namespace fsdpd {
namespace {

// Copies all fields that change without a revision: by a step report, and by slow-rank detection.
void SetMoving(const v1::Job& from, v1::Job* to) {
  to->clear_last_step();
  if (from.has_last_step()) *to->mutable_last_step() = from.last_step();
  to->clear_ledger();
  if (from.has_ledger()) *to->mutable_ledger() = from.ledger();
  *to->mutable_slowest_ranks() = from.slowest_ranks();
  to->set_first_loss(from.first_loss());
  to->set_peak_bytes(from.peak_bytes());
  to->set_steady_device_mallocs(from.steady_device_mallocs());
  to->set_skipped_through(from.skipped_through());
}

}  // namespace

JobWatch::Got JobWatch::Next(absl::Duration timeout, v1::WatchJobResponse* update) {
  MutexLock lock(&mutex_);
  if (updates_.empty() && !ended_) changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(timeout));
  if (!updates_.empty()) {
    *update = std::move(updates_.front());
    updates_.pop_front();
    return Got::kUpdate;
  }
  return ended_ ? Got::kEnd : Got::kNothingYet;
}

bool JobWatch::Push(v1::WatchJobResponse update) {
  MutexLock lock(&mutex_);
  const bool full = updates_.size() >= kMaxWatchUpdates;
  if (full) {
    const auto step = std::find_if(updates_.begin(), updates_.end(),
                                   [](const v1::WatchJobResponse& u) { return u.has_step(); });
    updates_.erase(step == updates_.end() ? updates_.begin() : step);
  }
  updates_.push_back(std::move(update));
  changed_.Signal();
  return full;
}

void JobWatch::End() {
  MutexLock lock(&mutex_);
  ended_ = true;
  changed_.Signal();
}

std::vector<std::shared_ptr<JobWatch>> JobBoard::LiveWatches(Entry* entry) {
  std::vector<std::shared_ptr<JobWatch>> live;
  for (const auto& weak : entry->watches) {
    if (auto watch = weak.lock()) live.push_back(std::move(watch));
  }
  entry->watches.assign(live.begin(), live.end());
  return live;
}

// The board's lock is held while updates are pushed, so that all watches see changes in the same order. A
// watch's lock is only acquired inside it.
void JobBoard::Publish(const v1::Job& job) {
  const auto shown = std::make_shared<const v1::Job>(job);
  MutexLock lock(&mutex_);
  Entry& entry = entries_[job.id()];
  entry.job = shown;
  entry.moved.reset();
  Settle(job);
  const bool ended = IsEnded(job.state());
  for (const auto& watch : LiveWatches(&entry)) {
    v1::WatchJobResponse update;
    *update.mutable_job() = *shown;
    dropped_ += watch->Push(std::move(update)) ? 1 : 0;
    if (ended) watch->End();
  }
  if (ended) entries_.erase(job.id());
}

void JobBoard::PublishStep(const v1::Job& job) {
  Move(job);
  MutexLock lock(&mutex_);
  const auto it = entries_.find(job.id());
  if (it == entries_.end()) return;
  for (const auto& watch : LiveWatches(&it->second)) {
    v1::WatchJobResponse update;
    *update.mutable_step() = job.last_step();
    dropped_ += watch->Push(std::move(update)) ? 1 : 0;
  }
}

void JobBoard::Move(const v1::Job& job) {
  // Copied outside the lock, because every step of every job passes here.
  v1::Job moved;
  SetMoving(job, &moved);
  MutexLock lock(&mutex_);
  const auto it = entries_.find(job.id());
  if (it != entries_.end()) it->second.moved = std::move(moved);
}

void JobBoard::Replace(const v1::Job& job) {
  const auto shown = std::make_shared<const v1::Job>(job);
  MutexLock lock(&mutex_);
  const auto it = entries_.find(job.id());
  if (it == entries_.end()) return;
  it->second.job = shown;
  it->second.moved.reset();
  Settle(job);
}

void JobBoard::Settle(const v1::Job& job) {
  const bool idle = job.state() == v1::JOB_STATE_QUEUED || job.state() == v1::JOB_STATE_PAUSED;
  if (IsEnded(job.state()) || (idle && job.store_error().empty())) {
    unsettled_.erase(job.id());
  } else {
    unsettled_.insert(job.id());
  }
}

// Merges the fields in `moved` into the job. Done on the first read after a step, so that steps that nothing
// reads cost no copy of the whole job.
const std::shared_ptr<const v1::Job>& JobBoard::Whole(Entry* entry) {
  if (!entry->moved.has_value()) return entry->job;
  auto whole = std::make_shared<v1::Job>(*entry->job);
  SetMoving(*entry->moved, whole.get());
  entry->moved.reset();
  entry->job = std::move(whole);
  return entry->job;
}

void JobBoard::SetWaiting(std::map<std::string, v1::Job::Waiting> waiting) {
  MutexLock lock(&mutex_);
  waiting_ = std::move(waiting);
}

// A job that was launched since, or has ended, no longer waits.
void JobBoard::AddWaiting(v1::Job* job) const {
  const bool measured = job->state() == v1::JOB_STATE_PREFLIGHT;
  if (job->state() != v1::JOB_STATE_QUEUED && job->state() != v1::JOB_STATE_PAUSED && !measured) return;
  MutexLock lock(&mutex_);
  const auto it = job->state() == v1::JOB_STATE_PAUSED ? waiting_.end() : waiting_.find(job->id());
  if (measured) {  // Its reason contains the preflight; only a full disk is added.
    if (it != waiting_.end() && it->second.code() == v1::Job::Waiting::CODE_DISK)
      *job->mutable_waiting() = it->second;
  } else if (it != waiting_.end()) {
    *job->mutable_waiting() = it->second;
  } else if (job->state() == v1::JOB_STATE_QUEUED) {
    job->mutable_waiting()->set_code(v1::Job::Waiting::CODE_ADMITTED);
  } else {
    *job->mutable_waiting() = WaitingToBeResumed(job->id());
  }
}

std::optional<v1::Job> JobBoard::Get(const std::string& id) const {
  const std::shared_ptr<const v1::Job> job = Find(id);
  return job == nullptr ? std::nullopt : std::optional<v1::Job>(*job);
}

std::shared_ptr<const v1::Job> JobBoard::Find(const std::string& id) const {
  MutexLock lock(&mutex_);
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : Whole(&it->second);
}

std::vector<std::shared_ptr<const v1::Job>> JobBoard::Unsettled() const {
  MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<const v1::Job>> jobs;
  for (const std::string& id : unsettled_) jobs.push_back(Whole(&entries_.at(id)));
  return jobs;
}

std::vector<std::shared_ptr<const v1::Job>> JobBoard::Live() const {
  MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<const v1::Job>> live;
  for (auto& [id, entry] : entries_) live.push_back(Whole(&entry));
  return live;
}

std::shared_ptr<JobWatch> JobBoard::Watch(const std::string& id, int64_t after_revision) {
  MutexLock lock(&mutex_);
  const auto it = entries_.find(id);
  if (it == entries_.end()) return nullptr;
  auto watch = std::make_shared<JobWatch>();
  if (it->second.job->revision() != after_revision) {
    v1::WatchJobResponse update;
    *update.mutable_job() = *Whole(&it->second);
    watch->Push(std::move(update));
  }
  if (closed_) watch->End();
  it->second.watches.push_back(watch);
  return watch;
}

int64_t JobBoard::dropped_updates() const {
  MutexLock lock(&mutex_);
  return dropped_;
}

void JobBoard::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  for (auto& [id, entry] : entries_) {
    for (const auto& watch : LiveWatches(&entry)) watch->End();
  }
}

}  // namespace fsdpd
