// Checksum of a database's content, in the header of a backup (SQLite's application_id). It finds a byte that
// changed in transfer within a job's text, which neither SQLite nor protobuf detects.
//
// REQUIRES: no concurrent writer.
#pragma once

#include <sqlite3.h>

#include <string>

namespace fsdpd {

absl::Status WriteDigest(sqlite3* db, const std::string& path);
// DATA_LOSS on a mismatch. A backup of an older release has no checksum, and passes.
absl::Status CheckDigest(sqlite3* db, const std::string& path);
absl::Status RemoveDigest(sqlite3* db, const std::string& path);

}  // namespace fsdpd
