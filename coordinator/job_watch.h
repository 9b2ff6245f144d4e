// The live jobs as readers see them, and those who watch one. The reconciler publishes; handlers read.
//
// A job is on the board from its submit until it has ended; after that the store has it, and it had it before
// the board lost it, so a reader that asks the board first and the store second always finds a job.
//
// A watcher has a bounded queue. When it is full the oldest step goes; when it holds no step, the oldest
// change (every change is the whole job, so the newest one is never lost).
//
// Thread-safe.
#pragma once

#include <absl/time/time.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

constexpr size_t kMaxWatchUpdates = 256;

// One watcher of one job.
class JobWatch {
 public:
  enum class Got { kUpdate, kNothingYet, kEnd };

  // Waits at most `timeout`. kEnd: the job has ended and all was taken, or the coordinator stops.
  Got Next(absl::Duration timeout, v1::WatchJobResponse* update);

 private:
  friend class JobBoard;
  bool Push(v1::WatchJobResponse update);  // Whether one that nobody has taken went for it.
  void End();

  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::WatchJobResponse> updates_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

class JobBoard {
 public:
  // A new job or a change of one. An ended job leaves the board and its watches end.
  void Publish(const v1::Job& job);
  // `job` has a new last_step; its revision is unchanged. Readers see what SetMoving() names (job_watch.cc),
  // and nothing else that is new of it: a job is some kilobytes, and thousands step each second that nobody
  // reads.
  void PublishStep(const v1::Job& job);
  // Likewise, of what no watch tells of.
  void Move(const v1::Job& job);
  // Something of `job` is new that no watch tells of; its revision is unchanged.
  void Replace(const v1::Job& job);

  // Why jobs wait, by id: all that do. No change that a watch tells of.
  void SetWaiting(std::map<std::string, v1::Job::Waiting> waiting);
  void AddWaiting(v1::Job* job) const;  // What was set of it; nothing for a job that does not wait.

  std::optional<v1::Job> Get(const std::string& id) const;
  std::shared_ptr<const v1::Job> Find(const std::string& id) const;  // Null: it is not live.
  std::vector<std::shared_ptr<const v1::Job>> Live() const;
  // Live jobs that may not be stored as they are shown: all but those that are QUEUED or PAUSED and on disk.
  std::vector<std::shared_ptr<const v1::Job>> Unsettled() const;
  // Starts with the job as it is unless `after_revision` is its own: a higher one is of before the state was
  // restored from a backup. Null when the job is not live.
  std::shared_ptr<JobWatch> Watch(const std::string& id, int64_t after_revision);
  int64_t dropped_updates() const;  // By all watches.
  // Ends all watches, now and later: the coordinator stops.
  void Close();

 private:
  struct Entry {
    std::shared_ptr<const v1::Job> job;
    std::optional<v1::Job> moved;  // What moves with steps, and nothing else, where that is newer than `job`.
    std::vector<std::weak_ptr<JobWatch>> watches;
  };
  static const std::shared_ptr<const v1::Job>& Whole(Entry* entry);
  void Settle(const v1::Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static std::vector<std::shared_ptr<JobWatch>> LiveWatches(Entry* entry);

  mutable Mutex mutex_;
  mutable std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> unsettled_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, v1::Job::Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fsdpd
