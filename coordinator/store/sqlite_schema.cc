#include "coordinator/store/sqlite_schema.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/job/directory_owner.h"
#include "coordinator/job/job_machine.h"

namespace fsdpd {
namespace {

// Migrations: each entry makes a schema of the one before; the first applies to an empty file. SQLite stores
// the text of CREATE statements with their comments, and checksums cover it: do not edit entries.
constexpr const char* kSchemas[] = {
    R"sql(
  CREATE TABLE jobs (
    id TEXT PRIMARY KEY NOT NULL,
    state INTEGER NOT NULL,
    create_nanos INTEGER NOT NULL,
    request_id TEXT UNIQUE,   -- NULL where the request had none.
    job BLOB NOT NULL         -- fsdpd.v1.Job
  );
  CREATE INDEX jobs_by_time ON jobs (create_nanos, id);
  CREATE INDEX jobs_by_state ON jobs (state, create_nanos, id);
  CREATE TABLE counters (name TEXT PRIMARY KEY NOT NULL, value INTEGER NOT NULL);
  INSERT INTO counters VALUES ('generation', 0);
)sql",
    R"sql(
  CREATE TABLE cordons (
    node TEXT PRIMARY KEY NOT NULL,
    cordon BLOB NOT NULL      -- fsdpd.v1.Cordon
  );
)sql",
    R"sql(
  ALTER TABLE jobs ADD COLUMN end_nanos INTEGER NOT NULL DEFAULT 0;  -- 0 while it has not ended.
  CREATE INDEX jobs_by_end ON jobs (end_nanos, id) WHERE end_nanos > 0;
)sql",
    R"sql(
  ALTER TABLE jobs ADD COLUMN folder TEXT;  -- Of its checkpoints; NULL where it has none.
  CREATE INDEX jobs_by_folder ON jobs (folder, create_nanos, id) WHERE folder IS NOT NULL;
)sql",
    R"sql(
  ALTER TABLE jobs ADD COLUMN project TEXT;  -- NULL where it has none, as all that were stored before.
  CREATE INDEX jobs_by_project ON jobs (project, create_nanos, id) WHERE project IS NOT NULL;
)sql",
    R"sql(
  CREATE TABLE known_nodes (
    row INTEGER PRIMARY KEY CHECK (row = 1),
    nodes BLOB NOT NULL       -- fsdpd.v1.ListNodesResponse
  );
)sql",
    R"sql(
  CREATE TABLE nodes (        -- In place of known_nodes, which had them all in one row.
    name TEXT PRIMARY KEY NOT NULL,
    node BLOB NOT NULL        -- fsdpd.v1.Node
  );
)sql",
    R"sql(
  CREATE TABLE events (       -- Those of jobs that are stored with them move here when the job changes.
    sequence INTEGER PRIMARY KEY NOT NULL,
    event BLOB NOT NULL       -- fsdpd.v1.Event
  );
)sql",
    R"sql(
  DROP INDEX jobs_by_end;     -- It had ended ones alone, and a list in the order of ends has all.
  CREATE INDEX jobs_by_end ON jobs (end_nanos, id);
)sql",
    R"sql(
  CREATE TABLE job_labels (   -- A job's labels do not change.
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    create_nanos INTEGER NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (key, value, create_nanos, id)
  ) WITHOUT ROWID;
  CREATE UNIQUE INDEX job_labels_by_job ON job_labels (id, key);
  CREATE TRIGGER job_labels_of_deleted AFTER DELETE ON jobs BEGIN
    DELETE FROM job_labels WHERE id = OLD.id;
  END;
)sql"};
constexpr int64_t kSchemaVersion = std::size(kSchemas);
// Schemas that need a pass over existing rows:
constexpr int64_t kSchemaOfEnds = 3;
constexpr int64_t kSchemaOfDirectories = 4;
constexpr int64_t kSchemaOfNodes = 7;
constexpr int64_t kSchemaOfLabels = 10;

// The following functions, and MakeSchemas(), run within a transaction.

absl::Status AddEnds(sqlite3* db) {
  std::vector<v1::JobState> ended;
  for (const v1::JobState state : AllJobStates()) {
    if (IsEnded(state)) ended.push_back(state);
  }
  std::vector<std::pair<std::string, int64_t>> ends;
  Statement select(db, absl::StrCat("SELECT job, id FROM jobs WHERE state IN (", InStates(ended), ")"));
  FSDPD_RETURN_IF_ERROR(select.Each("read ended jobs", [&] {
    const std::string id = select.Blob(1);
    const absl::StatusOr<v1::Job> job = ParseJob(select.Blob(0));
    // A damaged job must not prevent the start; reading it returns DATA_LOSS.
    ends.emplace_back(id, job.ok() ? EndOf(*job) : 1);
    if (!job.ok()) LogWarning("found an unreadable job job=%s error=%s", id, job.status().message());
  }));
  for (const auto& [id, end_nanos] : ends) {
    Statement update(db, "UPDATE jobs SET end_nanos = ? WHERE id = ?", end_nanos, id);
    FSDPD_RETURN_IF_ERROR(update.Run(absl::StrCat("add the end of ", id)));
  }
  return absl::OkStatus();
}

absl::Status AddDirectories(sqlite3* db) {
  std::vector<std::pair<std::string, std::string>> directories;
  Statement select(db, "SELECT job, id FROM jobs");
  FSDPD_RETURN_IF_ERROR(select.Each("read jobs", [&] {
    const absl::StatusOr<v1::Job> job = ParseJob(select.Blob(0));
    if (job.ok()) directories.emplace_back(select.Blob(1), DirectoryOf(job->spec()));
  }));
  for (const auto& [id, directory] : directories) {
    Statement update(db, "UPDATE jobs SET folder = ? WHERE id = ?", SqlTextOrNull{directory}, id);
    FSDPD_RETURN_IF_ERROR(update.Run(absl::StrCat("add the directory of ", id)));
  }
  return absl::OkStatus();
}

absl::Status AddLabels(sqlite3* db) {
  Statement select(db, "SELECT job FROM jobs");
  return select.Each("read the labels of jobs", [&] {
    const absl::StatusOr<v1::Job> job = ParseJob(select.Blob(0));
    return job.ok() ? StoreLabels(db, *job) : absl::OkStatus();
  });
}

absl::Status SplitNodes(sqlite3* db) {
  v1::ListNodesResponse nodes;
  Statement select(db, "SELECT nodes FROM known_nodes");
  FSDPD_RETURN_IF_ERROR(select.Each("read the nodes", [&] {
    // Damaged nodes must not prevent the start: agents register again.
    if (!nodes.ParseFromString(select.Blob(0))) LogWarning("dropped unreadable stored nodes");
  }));
  for (const v1::Node& node : nodes.nodes()) {
    Statement insert(db, "INSERT OR REPLACE INTO nodes (name, node) VALUES (?,?)", node.name(),
                     SqlBlob{node.SerializeAsString()});
    FSDPD_RETURN_IF_ERROR(insert.Run(absl::StrCat("store node ", node.name())));
  }
  return Execute(db, "DROP TABLE known_nodes", "drop the old table of nodes");
}

absl::Status MakeSchemas(sqlite3* db, int64_t version, const std::string& doing) {
  for (int64_t from = version; from < kSchemaVersion; ++from)
    FSDPD_RETURN_IF_ERROR(Execute(db, kSchemas[from], doing));
  if (version < kSchemaOfEnds) FSDPD_RETURN_IF_ERROR(AddEnds(db));
  if (version < kSchemaOfDirectories) FSDPD_RETURN_IF_ERROR(AddDirectories(db));
  if (version < kSchemaOfLabels) FSDPD_RETURN_IF_ERROR(AddLabels(db));
  if (version < kSchemaOfNodes) FSDPD_RETURN_IF_ERROR(SplitNodes(db));
  return Execute(db, absl::StrCat("PRAGMA user_version=", kSchemaVersion), doing);
}

}  // namespace

absl::StatusOr<int64_t> ReadSchemaVersion(sqlite3* db, const std::string& path) {
  FSDPD_ASSIGN_OR_RETURN(const int64_t version,
                         QueryInt(db, "PRAGMA user_version", absl::StrCat("read ", path)));
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": has schema ", version, " (want at most ",
                                                      kSchemaVersion,
                                                      "); use the newer fsdpd-coordinator [STATE_TOO_NEW]"));
  }
  return version;
}

absl::Status PrepareSchema(sqlite3* db, const std::string& path) {
  FSDPD_ASSIGN_OR_RETURN(const int64_t version, ReadSchemaVersion(db, path));
  if (version == kSchemaVersion) return absl::OkStatus();
  const std::string doing = absl::StrCat(version == 0 ? "create " : "migrate ", path);
  FSDPD_RETURN_IF_ERROR(InTransaction(db, doing, [&] { return MakeSchemas(db, version, doing); }));
  if (version > 0) LogInfo("migrated the state schema=%d path=%s", kSchemaVersion, path);
  return absl::OkStatus();
}

absl::Status StoreLabels(sqlite3* db, const v1::Job& job) {
  for (const v1::Label& label : job.labels()) {
    Statement insert(db, "INSERT OR IGNORE INTO job_labels (key, value, create_nanos, id) VALUES (?,?,?,?)",
                     label.key(), label.value(), job.create_unix_nanos(), job.id());
    FSDPD_RETURN_IF_ERROR(insert.Run(absl::StrCat("store the labels of ", job.id())));
  }
  return absl::OkStatus();
}

namespace {

// The selector rule that drives the query through job_labels: a list by a rare label reads few rows, and one
// by a common label stops when its page is full. nullptr: the query reads an index of all jobs.
const LabelRule* LeadingRule(const JobQuery& query) {
  if (query.by_end || !query.directory.empty()) return nullptr;
  const auto found = std::find_if(query.selector.begin(), query.selector.end(),
                                  [](const LabelRule& rule) { return rule.kind == LabelRule::Kind::kIs; });
  return found == query.selector.end() ? nullptr : &*found;
}

bool HasValue(const LabelRule& rule) {
  return rule.kind == LabelRule::Kind::kIs || rule.kind == LabelRule::Kind::kIsNot;
}

std::string Condition(const LabelRule& rule) {
  const bool negated = rule.kind == LabelRule::Kind::kIsNot || rule.kind == LabelRule::Kind::kNotExists;
  return absl::StrCat(negated ? "NOT " : "",
                      "EXISTS (SELECT 1 FROM job_labels WHERE job_labels.id = jobs.id AND key = ?",
                      HasValue(rule) ? " AND value = ?" : "", ")");
}

}  // namespace

// Sorts positions and ids first, and then reads the jobs by rowid, so that blobs are not sorted. SQLite
// orders a subquery with LIMIT before the join, and CROSS JOIN fixes the join order.
std::string SelectJobs(const JobQuery& query) {
  const LabelRule* const leading = LeadingRule(query);
  const std::string from =
      leading == nullptr ? "jobs" : "job_labels AS label CROSS JOIN jobs ON jobs.id = label.id";
  const char* const table = leading == nullptr ? "jobs" : "label";
  const std::string id = absl::StrCat(table, ".id");
  const std::string time = absl::StrCat(table, query.by_end ? ".end_nanos" : ".create_nanos");
  const char* const direction = query.ascending ? "" : " DESC";
  std::string where = "1";
  if (!query.states.empty()) absl::StrAppend(&where, " AND state IN (", InStates(query.states), ")");
  if (!query.directory.empty()) absl::StrAppend(&where, " AND folder = ?");
  if (!query.project.empty()) absl::StrAppend(&where, " AND project = ?");
  if (!query.id_prefix.empty()) absl::StrAppend(&where, " AND substr(", id, ", 1, ?) = ?");
  if (query.after_cursor)
    absl::StrAppend(&where, " AND (", time, ", ", id, ") ", query.ascending ? ">" : "<", " (?, ?)");
  for (const LabelRule& rule : query.selector)
    absl::StrAppend(&where, " AND ",
                    &rule == leading ? "label.key = ? AND label.value = ?" : Condition(rule));
  return absl::StrCat("SELECT job FROM (SELECT jobs.rowid AS place FROM ", from, " WHERE ", where,
                      " ORDER BY ", time, direction, ", ", id, direction, " LIMIT ", query.limit + 1,
                      ") CROSS JOIN jobs ON jobs.rowid = place");
}

void BindQuery(const JobQuery& query, Statement* select) {
  if (!query.directory.empty()) select->Bind(query.directory);
  if (!query.project.empty()) select->Bind(query.project);
  if (!query.id_prefix.empty()) {
    select->Bind(static_cast<int64_t>(query.id_prefix.size()));
    select->Bind(query.id_prefix);
  }
  if (query.after_cursor) {
    select->Bind(query.cursor.unix_nanos);
    select->Bind(query.cursor.id);
  }
  for (const LabelRule& rule : query.selector) {
    select->Bind(rule.key);
    if (HasValue(rule)) select->Bind(rule.value);
  }
}

std::string InStates(const std::vector<v1::JobState>& states) {
  return absl::StrJoin(states, ",",
                       [](std::string* out, v1::JobState s) { absl::StrAppend(out, static_cast<int>(s)); });
}

}  // namespace fsdpd
