// Board of live jobs for readers, and watches of single jobs. The reconciler publishes; handlers read.
//
// A job is on the board from submit until it has ended. It is in the store before it leaves the board, so a
// reader that asks the board first and the store second always finds it.
//
// A watch has a bounded queue. When it is full, the oldest step is dropped; if there is none, the oldest
// change. Every change contains the whole job, so the newest state is never lost.
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

// Subscription of one reader to one job.
class JobWatch {
 public:
  enum class Got { kUpdate, kNothingYet, kEnd };

  // Waits at most `timeout`. kEnd: the job has ended and all updates were returned, or the coordinator stops.
  Got Next(absl::Duration timeout, v1::WatchJobResponse* update);

 private:
  friend class JobBoard;
  bool Push(v1::WatchJobResponse update);  // Returns whether an older update was dropped for it.
  void End();

  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::WatchJobResponse> updates_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

class JobBoard {
 public:
  // Publishes a new or changed job. An ended job leaves the board, and its watches end.
  void Publish(const v1::Job& job);
  // Publishes a new last_step of `job`; its revision is unchanged. Only the fields in SetMoving()
  // (job_watch.cc) are copied, because a job has some kilobytes, and thousands of jobs report steps each
  // second that nothing reads.
  void PublishStep(const v1::Job& job);
  // As PublishStep, for changes that watches do not report.
  void Move(const v1::Job& job);
  // Replaces `job` after a change that watches do not report; its revision is unchanged.
  void Replace(const v1::Job& job);

  // Sets the waiting reasons of all waiting jobs, by id. Watches do not report it.
  void SetWaiting(std::map<std::string, v1::Job::Waiting> waiting);
  void AddWaiting(v1::Job* job) const;  // Adds the reason of SetWaiting(), if the job has one.

  std::optional<v1::Job> Get(const std::string& id) const;
  std::shared_ptr<const v1::Job> Find(const std::string& id) const;  // Null: the job is not live.
  std::vector<std::shared_ptr<const v1::Job>> Live() const;
  // Live jobs whose stored record may differ from the shown one: all except QUEUED or PAUSED jobs on disk.
  std::vector<std::shared_ptr<const v1::Job>> Unsettled() const;
  // Starts with the current job unless `after_revision` is its revision. A higher value dates from before the
  // state was restored from a backup. Null if the job is not live.
  std::shared_ptr<JobWatch> Watch(const std::string& id, int64_t after_revision);
  int64_t dropped_updates() const;  // By all watches.
  // Ends all current and future watches: the coordinator stops.
  void Close();

 private:
  struct Entry {
    std::shared_ptr<const v1::Job> job;
    std::optional<v1::Job>
        moved;  // The fields that change with steps, if newer than in `job`; no other field.
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
