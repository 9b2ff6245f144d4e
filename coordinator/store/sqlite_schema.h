// The form of the state in SQLite: its tables, how an older one becomes the present one, and what a stored
// job is. PRAGMA user_version counts the forms.
//
// Pure functions of the file.
#pragma once

#include <absl/status/statusor.h>
#include <sqlite3.h>

#include <string>
#include <vector>

#include "coordinator/store/sqlite_query.h"
#include "coordinator/store/state_store.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Of a state directory.
inline std::string StateFileIn(const std::string& dir) { return dir + "/fsdpd.db"; }
constexpr char kNotWholeYet[] = ".new";  // Behind the name of a copy that a backup or a restore still writes.

// Of the file: 0 where it has none. FAILED_PRECONDITION where it is newer than this program knows.
absl::StatusOr<int64_t> ReadSchemaVersion(sqlite3* db, const std::string& path);
// Makes an empty file's or an older one's the present one: all of it or nothing.
absl::Status PrepareSchema(sqlite3* db, const std::string& path);

// For a clause `state IN (...)`.
std::string InStates(const std::vector<v1::JobState>& states);
// Stores the labels of a job that was just inserted. REQUIRES: the same transaction.
absl::Status StoreLabels(sqlite3* db, const v1::Job& job);
// SQL that returns the query's jobs in its order, at least as many as the query returns. BindQuery() binds
// its parameters.
std::string SelectJobs(const JobQuery& query);
void BindQuery(const JobQuery& query, Statement* select);

}  // namespace fsdpd
