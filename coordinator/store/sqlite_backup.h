// Backup and restore of a state directory. The generation of a restored state is the larger one of its own
// and one derived from the date (state_store.h).
//
// Errors: NOT_FOUND if the source is missing, ALREADY_EXISTS if the target file exists, FAILED_PRECONDITION
// for an unknown schema or a state directory that is not empty, DATA_LOSS for a damaged file (also found by
// its checksum, state_digest.h), RESOURCE_EXHAUSTED for a full disk, UNAVAILABLE for an I/O error or missing
// permissions. An error leaves no new file or directory behind.
//
// Thread-safe.
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

// A consistent snapshot. Does not block a coordinator that serves from `dir`. `to` appears under its name
// only when it was verified and is on stable storage.
absl::StatusOr<CopiedState> BackUp(const std::string& dir, const std::string& to);

// Creates `dir` if missing. An older schema is migrated by the coordinator that opens it.
absl::StatusOr<CopiedState> Restore(const std::string& from, const std::string& dir, absl::Time now);

// Conversion between a backup of any known schema and content stored outside SQLite.
absl::StatusOr<CopiedState> WriteBackup(const StateContent& content, const std::string& to);
absl::StatusOr<StateContent> ReadBackup(const std::string& from);

}  // namespace fsdpd
