// Atomic creation of a directory: it is built as TARGET.part next to its destination and renamed when
// complete. Attempts of a job use separate names, TARGET.ATTEMPT.part.
//
//   Create()    TARGET must not exist, or be empty (it is removed), or be replaceable by the caller (it stays
//               until Commit()). Contents of an interrupted build are still present. A second concurrent
//               Create() for the same target is rejected.
//   KeepOnly()  removes the contents of an interrupted build, except for these files.
//   Keep()      marks another file to keep if the build is interrupted.
//   Commit()    when everything is written and synced. Replacement is an atomic exchange if the file system
//               supports it; the old directory is removed when the new one is durable.
//
// Destruction without a successful Commit() removes everything except kept files, and the directory if
// nothing is kept; before KeepOnly() it removes nothing. A killed process leaves everything for the next
// Create().
//
// Not thread-safe. Errors: ALREADY_EXISTS if TARGET exists; FAILED_PRECONDITION if another process is active
// or TARGET.part has unexpected contents; else ErrnoStatus's.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/unique_fd.h"

namespace fsdpd {

class PartDirectory {
 public:
  // `mark`: if not empty, an existing TARGET is replaced as a whole; the caller must write a file of this
  // name before Commit(). `attempt`: number of the exporting attempt, which has its own directory; 0: not an
  // attempt.
  static absl::StatusOr<std::unique_ptr<PartDirectory>> Create(const std::string& target,
                                                               const std::string& mark = "", int attempt = 0);
  ~PartDirectory();
  PartDirectory(const PartDirectory&) = delete;
  PartDirectory& operator=(const PartDirectory&) = delete;

  const std::string& path() const { return part_; }

  // Removes nothing if there are unexpected files.
  absl::Status KeepOnly(std::set<std::string> names);
  void Keep(const std::string& name) { kept_.insert(name); }

  absl::Status Commit();

 private:
  PartDirectory(std::string target, std::string part, UniqueFd fd, bool replaces)
      : target_(std::move(target)), part_(std::move(part)), fd_(std::move(fd)), replaces_(replaces) {}

  absl::Status Replace();

  const std::string target_, part_;
  const UniqueFd fd_;  // Descriptor of the directory, locked.
  const bool replaces_;
  std::set<std::string> kept_;
  bool cleared_ = false;
  bool committed_ = false;
};

// UNAVAILABLE and IsDiskFull() if the disk for a directory or file at this path has less free space.
absl::Status CheckFreeSpace(const std::string& target, int64_t bytes);

}  // namespace fsdpd
