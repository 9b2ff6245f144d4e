// A folder that is there whole or not at all: it is made under another name, TARGET.part, beside where it
// shall be, and renamed when it is complete.
//
//   Create()   TARGET is not there, or an empty folder, which goes; or what the caller wants replaced, which
//              stays until Commit(). What an interrupted one left under the other name is removed: nothing
//              of it is used. Two at one target: the second is refused.
//   Commit()   when all is in it and on disk. What is replaced and the new one change places at once, where
//              the file system can do that; the old one is removed when the new one is on disk at its place.
//
// Destroyed without a Commit() that succeeded, it takes away what it made; a process that is killed leaves it
// for the next Create().
//
// Not thread-safe. Errors: ALREADY_EXISTS where something is at TARGET, FAILED_PRECONDITION where another
// process is at work or TARGET.part holds what no conversion makes, else ErrnoStatus's.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace fsdpd {

class PartFolder {
 public:
  // `replaces`: what is at TARGET goes, all of it, once there is something else.
  static absl::StatusOr<std::unique_ptr<PartFolder>> Create(const std::string& target, bool replaces = false);
  ~PartFolder();
  PartFolder(const PartFolder&) = delete;
  PartFolder& operator=(const PartFolder&) = delete;

  const std::string& path() const { return part_; }

  absl::Status Commit();

 private:
  PartFolder(std::string target, std::string part, int fd, bool replaces)
      : target_(std::move(target)), part_(std::move(part)), fd_(fd), replaces_(replaces) {}

  absl::Status Replace();

  const std::string target_, part_;
  const int fd_;  // Of the folder, and locked.
  const bool replaces_;
  bool committed_ = false;
};

// UNAVAILABLE where the disk that a folder of this name would be on has less free.
absl::Status CheckFreeSpace(const std::string& target, int64_t bytes);

}  // namespace fsdpd
