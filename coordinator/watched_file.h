// A small text file that an operator edits while the coordinator runs, and that says who may do what.
// Refresh() looks at it often, and reads it when it was written or replaced. A text that is refused leaves
// the one before in use: the file is then stale, which the log reports once and a metric for as long as it
// lasts (fsdpd_coordinator_file_stale).
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
  // Puts a text into use. INVALID_ARGUMENT with the line of the first fault.
  using Take = std::function<absl::Status(const std::string& text)>;

  // `holds`: what is in the file, for the log ("tokens").
  WatchedFile(std::string holds, std::string path, Clock* clock, Take take)
      : holds_(std::move(holds)), path_(std::move(path)), clock_(clock), take_(std::move(take)) {}

  // Takes the text unless that was taken before; also again if the file was written so lately that it may be
  // written once more at the same date. After an error the next call reads again.
  absl::Status Reread();
  // Reread(), with its error in the log once. Whether what is in use is what the file holds.
  bool Refresh();

 private:
  // What shows that a file was written or replaced.
  struct Stamp {
    int64_t device = 0, inode = 0, bytes = 0, modified_ns = 0, changed_ns = 0;
    bool operator==(const Stamp& other) const;
  };
  absl::StatusOr<Stamp> Look() const;
  absl::Status RereadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string holds_, path_;
  Clock* const clock_;
  const Take take_;
  // Held from the look at the file until its text is in use, so that a slow reader of an older text (a token
  // that was revoked since) never replaces a newer one. Nothing else is read under it.
  Mutex mutex_;
  std::optional<Stamp> stamp_ ABSL_GUARDED_BY(mutex_);  // Of the text that was taken last.
  std::string last_fault_ ABSL_GUARDED_BY(mutex_);      // As the log has it; "" while the file is good.
};

}  // namespace fsdpd
