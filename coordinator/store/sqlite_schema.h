// SQLite schema of the coordinator state: tables, migrations, and SQL of job queries. PRAGMA user_version has
// the schema version.
//
// Stateless functions of the connection.
#pragma once

#include <absl/status/statusor.h>
#include <sqlite3.h>

#include <string>
#include <vector>

#include "coordinator/store/sqlite_query.h"
#include "coordinator/store/state_store.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// The state file in a state directory.
inline std::string StateFileIn(const std::string& dir) { return dir + "/fsdpd.db"; }
constexpr char kPartialSuffix[] = ".new";  // Suffix of a copy that a backup or a restore is still writing.

// 0 if the file has no schema. FAILED_PRECONDITION if the schema is newer than this program supports.
absl::StatusOr<int64_t> ReadSchemaVersion(sqlite3* db, const std::string& path);
// Creates the current schema in an empty file, or migrates an older one, in one transaction.
absl::Status PrepareSchema(sqlite3* db, const std::string& path);

// Values for a clause `state IN (...)`.
std::string InStates(const std::vector<v1::JobState>& states);
// Stores the labels of a job that was just inserted. REQUIRES: the same transaction.
absl::Status StoreLabels(sqlite3* db, const v1::Job& job);
// SQL that returns the query's jobs in its order, at least as many as the query returns. BindQuery() binds
// its parameters.
std::string SelectJobs(const JobQuery& query);
void BindQuery(const JobQuery& query, Statement* select);

}  // namespace fsdpd
