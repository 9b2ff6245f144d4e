// A small text file that an operator edits while the coordinator runs, and that says who may do what: it is
// looked at often, and read when it is another than was read last, or has been written.
//
// Thread-safe. Errors begin with the path.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace fsdpd {

class WatchedFile {
 public:
  WatchedFile(std::string path, Clock* clock) : path_(std::move(path)), clock_(clock) {}

  // Its text, unless that was read before. Also of a file that was written so lately that it may be written
  // again at the same date.
  absl::StatusOr<std::optional<std::string>> Changed();
  const std::string& path() const { return path_; }

 private:
  // What of a file tells that it is another, or has been written.
  struct Stamp {
    int64_t device = 0, inode = 0, bytes = 0, modified_ns = 0, changed_ns = 0;
    bool operator==(const Stamp& other) const;
  };
  absl::StatusOr<Stamp> Look() const;

  const std::string path_;
  Clock* const clock_;
  Mutex mutex_;
  std::optional<Stamp> stamp_ ABSL_GUARDED_BY(mutex_);  // Of what was read last.
};

}  // namespace fsdpd
