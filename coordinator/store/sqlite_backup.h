// A state directory's content as one file, and back: what `fsdpd-coordinator backup` and `restore` do. The
// file is the same for a state that lies elsewhere (etcd_backup.h).
//
// A restored state has a generation by date (state_store.h) where that is more than its own.
//
// Errors: NOT_FOUND for what is not there, ALREADY_EXISTS for what would be overwritten, FAILED_PRECONDITION
// for a schema that this program does not know and for a state directory that is not empty, DATA_LOSS for a
// damaged file, by its checksum (state_digest.h) too, RESOURCE_EXHAUSTED for a full disk, UNAVAILABLE for an
// I/O error and for what may not be read or written. After an error there is no new file or directory.
//
// Thread-safe: functions of the files.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <string>

#include "coordinator/store/state_content.h"

namespace fsdpd {

struct CopiedState {
  int64_t jobs = 0;
  int64_t bytes = 0;
  int64_t schema = 0;
};

// As of one moment, also while a coordinator serves from `dir`, which it does not hold up. `to` is on stable
// storage, and checked, when it appears under its name.
absl::StatusOr<CopiedState> BackUp(const std::string& dir, const std::string& to);

// Makes `dir` where it is missing. An older schema is brought to the present one by the coordinator that
// starts.
absl::StatusOr<CopiedState> Restore(const std::string& from, const std::string& dir, absl::Time now);

// A backup of what lies elsewhere, and what a backup holds, of whichever schema: for another place than
// SQLite.
absl::StatusOr<CopiedState> WriteBackup(const StateContent& content, const std::string& to);
absl::StatusOr<StateContent> ReadBackup(const std::string& from);

}  // namespace fsdpd
