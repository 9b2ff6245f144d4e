// Complete content of a coordinator state, independent of the store: what a backup contains, and what moves
// between SQLite and etcd. Values are serialized messages as stored.
//
// Thread-safe.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>

struct sqlite3;

namespace fsdpd {

struct StateContent {
  int64_t generation = 0;
  std::map<std::string, std::string> jobs;     // v1::Job by id.
  std::map<std::string, std::string> cordons;  // v1::Cordon by node.
  std::map<std::string, std::string> nodes;    // v1::Node by name.
  std::map<int64_t, std::string> events;       // v1::Event by sequence.
};

// REQUIRES: an empty database of the current schema (sqlite_schema.h). Runs in one transaction; DATA_LOSS for
// a job that cannot be parsed.
absl::Status PutContent(sqlite3* db, const StateContent& content);
// REQUIRES: a database of the current schema.
absl::StatusOr<StateContent> ReadContent(sqlite3* db);

}  // namespace fsdpd
