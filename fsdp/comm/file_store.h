// The rendezvous through a directory that all ranks see: for ranks that somebody else's launcher starts,
// without the daemon. A key is a file; it is written aside and linked to its name, so a reader sees all of it
// or nothing, and two writers of one key cannot both succeed. Files stay until the directory's owner removes
// it.
//
// REQUIRES: a directory of its own for each launch, on a file system with hard links (local disks, NFS,
// Lustre). Readers poll: a rendezvous is some tens of keys, once.
//
// Thread-safe. Errors: Store's; UNAVAILABLE names the file and the system's words.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "fsdp/comm/store.h"

namespace fsdpd {

class FileStore : public Store {
 public:
  // Makes the directory if it is not there. No Get waits longer than `longest_wait`, whatever its timeout:
  // who started the ranks may not end those that wait for one that was killed.
  static absl::StatusOr<std::unique_ptr<FileStore>> Open(
      const std::string& directory, absl::Duration longest_wait = absl::InfiniteDuration());

  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override;

 private:
  FileStore(std::string directory, absl::Duration longest_wait)
      : directory_(std::move(directory)), longest_wait_(longest_wait) {}

  std::string FileOf(const std::string& key) const;

  const std::string directory_;
  const absl::Duration longest_wait_;
};

}  // namespace fsdpd
