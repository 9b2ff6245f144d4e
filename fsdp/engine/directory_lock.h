// Exclusive lock of one attempt on the job's checkpoint directory. Rank 0 locks DIR/.fsdpd_lock for as long
// as this object lives and writes a token into it. The other ranks read the token, so a directory that is not
// shared by all nodes is detected before the first step.
//
// Rank 0 chooses the checkpoint to start from after Take: until then, a rank 0 of an earlier attempt on a
// lost node may still commit one.
//
//   Take    on each rank, first. Rank 0 waits for the rank 0 of an earlier attempt, and for a holder that may
//           be gone: a file server keeps the locks of a lost node for a while. It logs each holder and how
//           long it waited.
//   Clear   on rank 0, before any rank writes.
//   Keep    before each checkpoint is written.
//
// The lock file contains the holder's job, token and host.
//
// If the file system does not support locks, or the disk is full, two runs are not kept apart.
//
// Thread safety: one thread at a time.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "fsdp/comm/store.h"

namespace fsdpd {

class DirectoryLock {
 public:
  struct Options {
    std::string dir;
    std::string job;  // Job id; may be empty.
    int64_t rank = 0;
    Store* store = nullptr;
    const std::atomic<bool>* stop = nullptr;  // Ends all waits.
    // The job has committed a checkpoint: a missing directory is not mounted, and must not be created.
    bool has_checkpoints = false;
    Clock* clock = Clock::Real();
  };

  // Creates the directory. UNAVAILABLE: that failed, or rank 0 sees another directory. FAILED_PRECONDITION:
  // another run holds the lock. Rank 0's error is marked as a peer's on the other ranks (peer_lost.h).
  static absl::StatusOr<std::unique_ptr<DirectoryLock>> Take(Options options);
  ~DirectoryLock();

  // Renames `damaged` checkpoints, and removes the incomplete files of killed saves.
  absl::Status Clear(const std::vector<std::string>& damaged);

  // If the directory was removed, its lock went with it: locks the new directory, or fails if another run was
  // faster. Also returns the error of CheckHeld(). OK on other ranks.
  absl::Status ActivationSaving();

  // FAILED_PRECONDITION if another rank 0 has signed the lock file since, because a file server dropped this
  // lock as that of a lost node. OK if unknown.
  absl::Status CheckHeld() const;

  // Token of this attempt; empty if it is not known whether the ranks share the directory.
  const std::string& token() const { return token_; }
  // Directory for messages between ranks while the store is unavailable.
  std::string message_dir() const;

 private:
  explicit DirectoryLock(Options options) : options_(std::move(options)) {}

  std::string path() const;
  absl::Status Make();
  absl::Status TakeAsFirst();
  absl::Status AwaitFirst();
  // `longest_foreign`: how long to wait for the lock of another job's holder that may be gone.
  absl::Status Lock(absl::Duration longest_foreign);
  absl::Status Sign();
  void RemoveMessages() const;

  const Options options_;
  int lock_ = -1;
  bool locked_ = false;
  std::string token_;
};

}  // namespace fsdpd
