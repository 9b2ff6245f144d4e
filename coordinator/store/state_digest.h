// Checksum of a database's content. A backup stores it in its header (SQLite's application_id), and restore
// compares it. It finds a byte that changed in transfer within a job's text, which neither SQLite nor
// protobuf detects.
//
// This is a checksum, not a signature. REQUIRES: no concurrent writer.
#pragma once

#include <absl/status/statusor.h>
#include <sqlite3.h>

#include <string>

namespace fsdpd {

absl::Status WriteDigest(sqlite3* db, const std::string& path);
// DATA_LOSS on a mismatch. A backup of an older release has no checksum, and passes.
absl::Status CheckDigest(sqlite3* db, const std::string& path);
absl::Status RemoveDigest(sqlite3* db, const std::string& path);

}  // namespace fsdpd
