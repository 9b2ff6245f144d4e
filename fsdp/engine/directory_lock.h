// Exclusive use of a job's checkpoint directory by one attempt. Rank 0 holds a lock on DIR/.fsdpd_lock for as
// long as the object lives and writes a token there. The other ranks read it, so a directory that nodes do
// not share is found before the first step.
//
// Rank 0 chooses the checkpoint to start from after Take: a rank 0 of an earlier attempt, on a node that was
// lost, may commit another one until then.
//
//   Take    each rank, first. Rank 0 waits for a rank 0 of an earlier attempt, and for a holder that may be
//           gone: a file server keeps the locks of a lost node for a while. It logs each holder, and how long
//           it waited.
//   Clear   rank 0, before any rank writes
//   Keep    before each checkpoint that is written
//
// The lock file names the holder's job, token and host.
//
// Where the file system has no locks, or the disk is full, nothing keeps two runs apart.
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
    std::string job;  // Its id; may be empty.
    int64_t rank = 0;
    Store* store = nullptr;
    const std::atomic<bool>* stop = nullptr;  // Nothing is awaited once it is set.
    // The job has committed one: a directory that is missing is not mounted, and is not created.
    bool has_checkpoints = false;
    Clock* clock = Clock::Real();
  };

  // Creates the directory. UNAVAILABLE when that fails or rank 0 has another one, FAILED_PRECONDITION while
  // another run writes there. Rank 0's error is marked on the other ranks (peer_lost.h).
  static absl::StatusOr<std::unique_ptr<DirectoryLock>> Take(Options options);
  ~DirectoryLock();

  // Renames `damaged` checkpoints, and removes what saves that were killed left incomplete.
  absl::Status Clear(const std::vector<std::string>& damaged);

  // If somebody removed the directory, its lock went with it: takes the lock of the new one, or fails when
  // another run was faster. CheckHeld()'s error. OK on other ranks.
  absl::Status Keep();

  // FAILED_PRECONDITION where another rank 0 has signed the lock file since: a file server dropped this one's
  // lock, as that of a node that was lost. OK where nobody knows.
  absl::Status CheckHeld() const;

  // Of this attempt; empty where it is not known that the ranks share the directory.
  const std::string& token() const { return token_; }
  // Where ranks leave messages for each other while the store is silent.
  std::string said_dir() const;

 private:
  explicit DirectoryLock(Options options) : options_(std::move(options)) {}

  std::string path() const;
  absl::Status Make();
  absl::Status TakeAsFirst();
  absl::Status AwaitFirst();
  // `longest_foreign`: how long the lock of a holder that may be gone is waited for.
  absl::Status Lock(absl::Duration longest_foreign);
  absl::Status Sign();
  void RemoveSaid() const;

  const Options options_;
  int lock_ = -1;
  bool locked_ = false;
  std::string token_;
};

}  // namespace fsdpd
