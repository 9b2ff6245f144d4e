// How many ranks each project may have at once: a file of lines PROJECT RANKS, with '#' comments, that an
// operator edits while the coordinator runs, read as tokens are (token_store.h). Projects without a line have
// no bound, and jobs without a project neither.
//
// A job that its quota keeps from being launched holds no place in the queue, so that those of other projects
// pass it; those of its own, which would take what it waits for, do not. One that needs more than the quota
// has is passed by all. A quota that is made smaller stops nothing that runs.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "coordinator/watched_file.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

using RanksByProject = std::map<std::string, int64_t>;

// INVALID_ARGUMENT with the line of the first fault.
absl::StatusOr<RanksByProject> ParseQuotas(absl::string_view text);

// Thread-safe.
class QuotaFile {
 public:
  // Fails for a file that cannot be read, or has a fault. One that gets a fault later leaves what was read
  // before in use (watched_file.h).
  static absl::StatusOr<std::unique_ptr<QuotaFile>> Open(const std::string& path, Clock* clock);
  RanksByProject Read();
  bool Stale() { return !file_.Refresh(); }

 private:
  QuotaFile(const std::string& path, Clock* clock);
  absl::Status Take(const std::string& text);

  Mutex mutex_;
  RanksByProject ranks_ ABSL_GUARDED_BY(mutex_);
  WatchedFile file_;
};

// What is left of the quotas while jobs are placed, in the order of the queue.
class QuotaRoom {
 public:
  QuotaRoom() = default;
  // `held`: before that. Slots of an attempt that leaves are its project's until it has left.
  explicit QuotaRoom(RanksByProject quotas, RanksByProject held = {})
      : quotas_(std::move(quotas)), held_(std::move(held)) {}

  const RanksByProject& quotas() const { return quotas_; }

  // A job of `project` holds them.
  void Take(const std::string& project, int64_t ranks) { held_[project] += ranks; }
  // Whether a job of it may have so many more.
  bool Allows(const std::string& project, int64_t ranks) const;
  // Why a job that needs `ranks` is not to be launched now; "" where it may be. `waiting` gets the same for
  // programs.
  std::string WhyNot(const v1::Job& job, int64_t ranks, v1::Job::Waiting* waiting);

 private:
  RanksByProject quotas_, held_;
  std::map<std::string, std::string> first_;  // By project: the job that waits for its quota.
};

}  // namespace fsdpd
