// Project quotas: the number of ranks that each project may use at a time. The file has lines PROJECT RANKS
// and '#' comments. An operator edits it while the coordinator runs, and it is reread like the token file
// (token_store.h). Projects without a line, and jobs without a project, are not limited.
//
// A job that its quota blocks holds no place in the queue, so jobs of other projects pass it. Jobs of its own
// project do not, because they would use the ranks it waits for. A job that needs more than the whole quota
// is passed by all. Lowering a quota stops no running job.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "coordinator/access/watched_file.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

using RanksByProject = std::map<std::string, int64_t>;

// INVALID_ARGUMENT names the first invalid line.
absl::StatusOr<RanksByProject> ParseQuotas(absl::string_view text);

// Thread-safe.
class QuotaFile {
 public:
  // Fails for a file that cannot be read or is invalid. If it becomes invalid later, the last valid contents
  // stay in use (watched_file.h).
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

// The remaining quotas while jobs are placed in queue order.
class RemainingQuotas {
 public:
  RemainingQuotas() = default;
  // `held`: ranks in use. The slots of an attempt that is stopping count until it has left.
  explicit RemainingQuotas(RanksByProject quotas, RanksByProject held = {})
      : quotas_(std::move(quotas)), held_(std::move(held)) {}

  const RanksByProject& quotas() const { return quotas_; }

  // Counts ranks of a job of `project`.
  void Take(const std::string& project, int64_t ranks) { held_[project] += ranks; }
  // Whether `project` may use this many more ranks.
  bool Allows(const std::string& project, int64_t ranks) const;
  // Returns why a job that needs `ranks` may not be launched now, or "". Sets `waiting` to the
  // machine-readable form.
  std::string WhyNot(const v1::Job& job, int64_t ranks, v1::Job::Waiting* waiting);

 private:
  RanksByProject quotas_, held_;
  std::map<std::string, std::string> first_;  // By project: the first job that waits for its quota.
};

}  // namespace fsdpd
