// Small text file of permissions or limits that an operator edits while the coordinator runs. Refresh() is
// cheap and rereads the file when it was written or replaced. If the new contents are rejected, the last
// valid contents stay in use and the file is stale: the log reports this once, and the metric
// fsdpd_coordinator_file_stale as long as it lasts.
//
// Thread-safe. Errors begin with the path.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace fsdpd {

class WatchedFile {
 public:
  // Puts contents into use. INVALID_ARGUMENT names the first invalid line.
  using Take = std::function<absl::Status(const std::string& text)>;

  // `holds` names the contents in log lines ("tokens").
  WatchedFile(std::string holds, std::string path, Clock* clock, Take take)
      : holds_(std::move(holds)), path_(std::move(path)), clock_(clock), take_(std::move(take)) {}

  // Applies the contents unless they were applied before. Applies them again if the file was written so
  // recently that it may change once more with the same timestamp. After an error the next call reads again.
  absl::Status Reread();
  // Reread() that logs an error once. Returns whether the contents in use are those of the file.
  bool Refresh();

 private:
  // Identifies a version of the file.
  struct Stamp {
    int64_t device = 0, inode = 0, bytes = 0, modified_ns = 0, changed_ns = 0;
    bool operator==(const Stamp& other) const;
  };
  absl::StatusOr<Stamp> Poll() const;
  absl::Status RereadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string holds_, path_;
  Clock* const clock_;
  const Take take_;
  // Held from the stat of the file until its contents are in use, so that a slow reader of older contents
  // (with a token that was revoked since) never replaces newer ones. Guards nothing else.
  Mutex mutex_;
  std::optional<Stamp> stamp_ ABSL_GUARDED_BY(mutex_);  // Stamp of the contents applied last.
  std::string last_error_ ABSL_GUARDED_BY(mutex_);      // As logged; "" while the file is valid.
};

}  // namespace fsdpd
