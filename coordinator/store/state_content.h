// All that a coordinator's state is made of, wherever it lies: what a backup holds, and what is moved between
// SQLite and etcd. Messages as they are stored.
//
// Thread-safe: functions of a database.
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

// REQUIRES: an empty database of the present schema (sqlite_schema.h). All of it or nothing; DATA_LOSS for a
// job that cannot be read.
absl::Status PutContent(sqlite3* db, const StateContent& content);
// REQUIRES: of the present schema.
absl::StatusOr<StateContent> ReadContent(sqlite3* db);

}  // namespace fsdpd
