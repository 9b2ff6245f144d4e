// A number of all that a database holds, which a backup carries in its header (SQLite's application_id), and
// which restore compares: a byte that changed on the way may change no more than a job's text, which neither
// SQLite nor protobuf would find.
//
// A checksum, no signature. REQUIRES: nobody else writes.
#pragma once

#include <absl/status/statusor.h>
#include <sqlite3.h>

#include <string>

namespace fsdpd {

absl::Status WriteDigest(sqlite3* db, const std::string& path);
// DATA_LOSS where it differs. A backup of an older release has none, which passes.
absl::Status CheckDigest(sqlite3* db, const std::string& path);
absl::Status RemoveDigest(sqlite3* db, const std::string& path);

}  // namespace fsdpd
