// A directory that is there whole or not at all: it is made under another name, TARGET.part, beside where it
// shall be, and renamed when it is complete. A job's attempts have a name each, TARGET.ATTEMPT.part.
//
//   Create()    TARGET is not there, or an empty directory, which is removed; or what the caller wants
//               replaced, which stays until Commit(). What an interrupted one left under the other name
//               is still there.
//               Two at one target: the second is refused.
//   KeepOnly()  removes what an interrupted one left, but for these files.
//   Keep()      one more that is worth keeping.
//   Commit()    when all is in it and on disk. What is replaced and the new one change places at once, where
//               the file system can do that; the old one is removed when the new one is on disk at its place.
//
// Destroyed without a Commit() that succeeded, it takes away all but what is kept, and the directory where
// that is nothing; before KeepOnly() it takes away nothing. A process that is killed leaves all of it for the
// next Create().
//
// Not thread-safe. Errors: ALREADY_EXISTS where something is at TARGET, FAILED_PRECONDITION where another
// process is at work or TARGET.part holds what no conversion makes, else ErrnoStatus's.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>

namespace fsdpd {

class PartDirectory {
 public:
  // `mark`: what is at TARGET goes, all of it, once there is something else, which the caller puts a file of
  // this name into before Commit(). Empty: nothing is replaced. `attempt`: number of the
  // exporting attempt, which has a directory of its own. 0: not an attempt's.
  static absl::StatusOr<std::unique_ptr<PartDirectory>> Create(const std::string& target,
                                                               const std::string& mark = "", int attempt = 0);
  ~PartDirectory();
  PartDirectory(const PartDirectory&) = delete;
  PartDirectory& operator=(const PartDirectory&) = delete;

  const std::string& path() const { return part_; }

  // Removes nothing where something is no conversion's.
  absl::Status KeepOnly(std::set<std::string> names);
  void Keep(const std::string& name) { kept_.insert(name); }

  absl::Status Commit();

 private:
  PartDirectory(std::string target, std::string part, int fd, bool replaces)
      : target_(std::move(target)), part_(std::move(part)), fd_(fd), replaces_(replaces) {}

  absl::Status Replace();

  const std::string target_, part_;
  const int fd_;  // Of the directory, and locked.
  const bool replaces_;
  std::set<std::string> kept_;
  bool cleared_ = false;
  bool committed_ = false;
};

// UNAVAILABLE where the disk that a directory of this name would be on has less free.
absl::Status CheckFreeSpace(const std::string& target, int64_t bytes);

}  // namespace fsdpd
