// FileStore: rendezvous through a shared directory, for ranks that are started by another launcher, without
// the daemon. A key is a file, written under a temporary name and hard-linked to its own: so a reader sees a
// complete value or none, and of two writers of one key only one succeeds. Files stay until the owner of the
// directory removes them.
//
// REQUIRES: a separate directory for each launch, on a file system with hard links (local disks, NFS,
// Lustre). Readers poll, which is fine for the few dozen keys of a rendezvous.
//
// Thread-safe. Errors: as in Store; UNAVAILABLE names the file and the system error.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "fsdp/comm/store.h"

namespace fsdpd {

class FileStore : public Store {
 public:
  // Creates the directory if needed. `longest_wait` bounds the timeout of every Get, since the launcher may
  // not stop ranks that wait for one that was killed.
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
