#include "coordinator/store/state_content.h"

#include <absl/strings/str_cat.h>
#include <sqlite3.h>

#include "base/check.h"
#include "coordinator/job/directory_owner.h"
#include "coordinator/store/sqlite_query.h"
#include "coordinator/store/sqlite_schema.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {
namespace {

using Blobs = std::map<std::string, std::string>;

absl::Status PutJob(sqlite3* db, const std::string& id, const std::string& bytes) {
  const absl::StatusOr<v1::Job> job = ParseJob(bytes);
  if (!job.ok()) return absl::DataLossError(absl::StrCat("job ", id, ": cannot be read"));
  Statement insert(db,
                   "INSERT INTO jobs (id, state, create_nanos, request_id, job, end_nanos, folder, project) "
                   "VALUES (?,?,?,?,?,?,?,?)",
                   id, job->state(), job->create_unix_nanos(), SqlTextOrNull{job->request_id()},
                   SqlBlob{bytes}, EndOf(*job), SqlTextOrNull{DirectoryOf(job->spec())},
                   SqlTextOrNull{job->project()});
  FSDPD_RETURN_IF_ERROR(insert.Run(absl::StrCat("copy job ", id)));
  return StoreLabels(db, *job);
}

absl::Status PutBlobs(sqlite3* db, const std::string& table, const std::string& key, const std::string& value,
                      const Blobs& blobs) {
  for (const auto& [name, bytes] : blobs) {
    Statement insert(db, absl::StrCat("INSERT INTO ", table, " (", key, ", ", value, ") VALUES (?,?)"), name,
                     SqlBlob{bytes});
    FSDPD_RETURN_IF_ERROR(insert.Run(absl::StrCat("copy the ", value, " of ", name)));
  }
  return absl::OkStatus();
}

absl::Status PutRows(sqlite3* db, const StateContent& content) {
  for (const auto& [id, bytes] : content.jobs) FSDPD_RETURN_IF_ERROR(PutJob(db, id, bytes));
  FSDPD_RETURN_IF_ERROR(PutBlobs(db, "cordons", "node", "cordon", content.cordons));
  FSDPD_RETURN_IF_ERROR(PutBlobs(db, "nodes", "name", "node", content.nodes));
  for (const auto& [sequence, bytes] : content.events) {
    Statement insert(db, "INSERT INTO events (sequence, event) VALUES (?,?)", sequence, SqlBlob{bytes});
    FSDPD_RETURN_IF_ERROR(insert.Run("copy the events"));
  }
  return Execute(
      db, absl::StrCat("UPDATE counters SET value = ", content.generation, " WHERE name = 'generation'"),
      "copy the generation");
}

absl::StatusOr<Blobs> ReadBlobs(sqlite3* db, const std::string& table, const std::string& key,
                                const std::string& value) {
  Blobs blobs;
  Statement select(db, absl::StrCat("SELECT ", key, ", ", value, " FROM ", table));
  FSDPD_RETURN_IF_ERROR(
      select.Each(absl::StrCat("read ", table), [&] { blobs[select.Blob(0)] = select.Blob(1); }));
  return blobs;
}

}  // namespace

absl::Status PutContent(sqlite3* db, const StateContent& content) {
  return InTransaction(db, "copy the state", [&] { return PutRows(db, content); });
}

absl::StatusOr<StateContent> ReadContent(sqlite3* db) {
  StateContent content;
  FSDPD_ASSIGN_OR_RETURN(
      content.generation,
      QueryInt(db, "SELECT value FROM counters WHERE name = 'generation'", "read the generation"));
  FSDPD_ASSIGN_OR_RETURN(content.jobs, ReadBlobs(db, "jobs", "id", "job"));
  FSDPD_ASSIGN_OR_RETURN(content.cordons, ReadBlobs(db, "cordons", "node", "cordon"));
  FSDPD_ASSIGN_OR_RETURN(content.nodes, ReadBlobs(db, "nodes", "name", "node"));
  Statement select(db, "SELECT sequence, event FROM events");
  FSDPD_RETURN_IF_ERROR(
      select.Each("read the events", [&] { content.events[select.Int(0)] = select.Blob(1); }));
  return content;
}

}  // namespace fsdpd
