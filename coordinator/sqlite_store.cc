#include "coordinator/sqlite_store.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/job_folder.h"
#include "coordinator/job_machine.h"

namespace fsdpd {
namespace {

// Four values each; a statement may bind 32,766.
constexpr size_t kJobsPerUpdate = 4096;
// What makes each schema of the one before; the first of an empty file.
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
)sql"};
constexpr int64_t kSchemaVersion = std::size(kSchemas);
// Of jobs that were stored before:
constexpr int64_t kSchemaOfEnds = 3;
constexpr int64_t kSchemaOfFolders = 4;

// A quota, a limit of this process and the shared memory beside a full file are a full disk too.
bool IsFull(sqlite3* db, int rc) {
  if ((rc & 0xff) == SQLITE_FULL || rc == SQLITE_IOERR_SHMSIZE) return true;
  const int error = sqlite3_system_errno(db);
  const bool of_a_file = (rc & 0xff) == SQLITE_IOERR || (rc & 0xff) == SQLITE_CANTOPEN;
  return of_a_file && (error == ENOSPC || error == EDQUOT || error == EFBIG);
}

absl::Status StatusOf(sqlite3* db, int rc, absl::string_view doing) {
  const char* known = sqlite3_db_filename(db, "main");
  const std::string path = known == nullptr ? "a file that could not be opened" : known;
  if (IsFull(db, rc)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("state store: ", doing, ": the disk of ", path, " is full; free some space"));
  }
  const std::string message = absl::StrCat("state store: ", doing, ": ", sqlite3_errstr(rc));
  switch (rc & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_IOERR:
      return absl::UnavailableError(absl::StrCat(message, " (", path, ")"));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(message);
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY:
      return absl::FailedPreconditionError(message);
    case SQLITE_CONSTRAINT:
      return absl::AlreadyExistsError(message);
    default:
      return absl::InternalError(message);
  }
}

// One prepared statement for one call. Bind in order, then Step().
class Statement {
 public:
  Statement(sqlite3* db, const std::string& sql) : db_(db) {
    rc_ = sqlite3_prepare_v2(db, sql.c_str(), -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void BindInt(int64_t value) { Note(sqlite3_bind_int64(statement_, ++bound_, value)); }
  void BindText(const std::string& text) {
    Note(sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()),
                           SQLITE_TRANSIENT));
  }
  void BindTextOrNull(const std::string& text) {
    if (!text.empty()) return BindText(text);
    Note(sqlite3_bind_null(statement_, ++bound_));
  }
  void BindBlob(const std::string& bytes) {
    Note(sqlite3_bind_blob64(statement_, ++bound_, bytes.data(), bytes.size(), SQLITE_TRANSIENT));
  }

  // SQLITE_ROW, SQLITE_DONE or an error.
  int Step() { return rc_ == SQLITE_OK ? sqlite3_step(statement_) : rc_; }

  sqlite3* db() const { return db_; }
  int64_t Int(int column) { return sqlite3_column_int64(statement_, column); }
  std::string Blob(int column) {
    const void* data = sqlite3_column_blob(statement_, column);
    return std::string(static_cast<const char*>(data),
                       data == nullptr ? 0 : sqlite3_column_bytes(statement_, column));
  }

 private:
  void Note(int rc) {
    if (rc_ == SQLITE_OK) rc_ = rc;
  }
  sqlite3* const db_;
  sqlite3_stmt* statement_ = nullptr;
  int rc_ = SQLITE_OK;
  int bound_ = 0;
};

absl::Status Execute(sqlite3* db, const std::string& sql, absl::string_view doing) {
  const int rc = sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr);
  return rc == SQLITE_OK ? absl::OkStatus() : StatusOf(db, sqlite3_extended_errcode(db), doing);
}

absl::StatusOr<int64_t> QueryInt(sqlite3* db, const std::string& sql, absl::string_view doing) {
  Statement statement(db, sql);
  const int rc = statement.Step();
  if (rc != SQLITE_ROW)
    return rc == SQLITE_DONE ? absl::DataLossError(absl::StrCat(doing, ": no row")) : StatusOf(db, rc, doing);
  return statement.Int(0);
}

absl::StatusOr<v1::Job> ParseJob(const std::string& bytes) {
  v1::Job job;
  if (!job.ParseFromString(bytes)) return absl::DataLossError("state store: a stored job cannot be read");
  return job;
}

// At most `limit` of them, and none more once they have `max_bytes`: what is not wanted is not read.
absl::StatusOr<JobPage> ReadJobs(Statement* statement, size_t limit, size_t max_bytes,
                                 absl::string_view doing) {
  JobPage page;
  size_t bytes = 0;
  int rc;
  while ((rc = statement->Step()) == SQLITE_ROW) {
    page.more = page.jobs.size() >= limit || bytes >= max_bytes;
    if (page.more) return page;
    const std::string blob = statement->Blob(0);
    bytes += blob.size();
    FSDPD_ASSIGN_OR_RETURN(page.jobs.emplace_back(), ParseJob(blob));
  }
  if (rc != SQLITE_DONE) return StatusOf(statement->db(), rc, doing);
  return page;
}

absl::StatusOr<int> TakeLock(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return absl::FailedPreconditionError(absl::StrCat("cannot open ", path, ": ", strerror(errno)));
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return absl::FailedPreconditionError(
      absl::StrCat("another coordinator uses this state directory (it holds ", path, ")"));
}

// One that says nothing of it has ended long ago.
int64_t EndOf(const v1::Job& job) {
  return IsEnded(job.state()) ? std::max<int64_t>(1, job.end_unix_nanos()) : 0;
}

absl::Status FolderTaken(const v1::Job& job) {
  return absl::FailedPreconditionError(
      absl::StrCat("another job that has not ended has the folder ", FolderOf(job.spec())));
}

std::string InStates(const std::vector<v1::JobState>& states) {
  return absl::StrJoin(states, ",",
                       [](std::string* out, v1::JobState s) { absl::StrAppend(out, static_cast<int>(s)); });
}

// REQUIRES: within a transaction.
absl::Status AddEnds(sqlite3* db) {
  std::vector<v1::JobState> ended;
  for (const v1::JobState state : AllJobStates()) {
    if (IsEnded(state)) ended.push_back(state);
  }
  std::vector<std::pair<std::string, int64_t>> ends;
  Statement select(db, absl::StrCat("SELECT job, id FROM jobs WHERE state IN (", InStates(ended), ")"));
  int rc;
  while ((rc = select.Step()) == SQLITE_ROW) {
    const std::string id = select.Blob(1);
    const absl::StatusOr<v1::Job> job = ParseJob(select.Blob(0));
    // What is damaged keeps no coordinator from starting: it is told when it is asked for.
    ends.emplace_back(id, job.ok() ? EndOf(*job) : 1);
    if (!job.ok()) LogWarning("job=%s: %s", id, job.status().message());
  }
  if (rc != SQLITE_DONE) return StatusOf(db, rc, "read ended jobs");
  for (const auto& [id, end_nanos] : ends) {
    Statement update(db, "UPDATE jobs SET end_nanos = ? WHERE id = ?");
    update.BindInt(end_nanos);
    update.BindText(id);
    if (rc = update.Step(); rc != SQLITE_DONE) return StatusOf(db, rc, absl::StrCat("add the end of ", id));
  }
  return absl::OkStatus();
}

// REQUIRES: within a transaction.
absl::Status AddFolders(sqlite3* db) {
  std::vector<std::pair<std::string, std::string>> folders;
  Statement select(db, "SELECT job, id FROM jobs");
  int rc;
  while ((rc = select.Step()) == SQLITE_ROW) {
    const absl::StatusOr<v1::Job> job = ParseJob(select.Blob(0));
    if (job.ok()) folders.emplace_back(select.Blob(1), FolderOf(job->spec()));
  }
  if (rc != SQLITE_DONE) return StatusOf(db, rc, "read jobs");
  for (const auto& [id, folder] : folders) {
    Statement update(db, "UPDATE jobs SET folder = ? WHERE id = ?");
    update.BindTextOrNull(folder);
    update.BindText(id);
    if (rc = update.Step(); rc != SQLITE_DONE)
      return StatusOf(db, rc, absl::StrCat("add the folder of ", id));
  }
  return absl::OkStatus();
}

// REQUIRES: within a transaction.
absl::Status MakeSchemas(sqlite3* db, int64_t version, const std::string& doing) {
  for (int64_t from = version; from < kSchemaVersion; ++from)
    FSDPD_RETURN_IF_ERROR(Execute(db, kSchemas[from], doing));
  if (version < kSchemaOfEnds) FSDPD_RETURN_IF_ERROR(AddEnds(db));
  return version < kSchemaOfFolders ? AddFolders(db) : absl::OkStatus();
}

// All of it or nothing.
absl::Status PrepareSchema(sqlite3* db, const std::string& path) {
  FSDPD_ASSIGN_OR_RETURN(const int64_t version,
                         QueryInt(db, "PRAGMA user_version", absl::StrCat("read ", path)));
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has schema ", version,
                                                      ", this program knows up to ", kSchemaVersion,
                                                      ": use the newer fsdpd-coordinator"));
  }
  if (version == kSchemaVersion) return absl::OkStatus();
  const std::string doing = absl::StrCat(version == 0 ? "create " : "bring to the present schema ", path);
  FSDPD_RETURN_IF_ERROR(Execute(db, "BEGIN IMMEDIATE", doing));
  absl::Status done = MakeSchemas(db, version, doing);
  if (done.ok()) done = Execute(db, absl::StrCat("PRAGMA user_version=", kSchemaVersion, ";COMMIT;"), doing);
  if (!done.ok()) Execute(db, "ROLLBACK", "take it back").IgnoreError();
  if (done.ok() && version > 0) LogInfo("the state is of schema %d now path=%s", kSchemaVersion, path);
  return done;
}

}  // namespace

struct SqliteStore::Handle {
  ~Handle() {
    sqlite3_close(db);
    if (lock_fd >= 0) close(lock_fd);
  }
  // `alone`: nobody else may read the file meanwhile, and what readers and writers share lies in this
  // process.
  absl::Status Connect(const std::string& path, bool alone) {
    sqlite3_close(std::exchange(db, nullptr));
    const int rc = sqlite3_open_v2(
        path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
    if (rc != SQLITE_OK) return StatusOf(db, rc, absl::StrCat("open ", path));
    sqlite3_extended_result_codes(db, 1);
    // Before anything is read: from then on it has no effect.
    if (alone) FSDPD_RETURN_IF_ERROR(Execute(db, "PRAGMA locking_mode=EXCLUSIVE", "take the file"));
    FSDPD_RETURN_IF_ERROR(PrepareSchema(db, path));
    return Execute(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;", "set up");
  }

  sqlite3* db = nullptr;
  int lock_fd = -1;
  std::string path;
  struct stat opened = {};
};

SqliteStore::SqliteStore(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
SqliteStore::~SqliteStore() = default;

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const std::string& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return absl::FailedPreconditionError(absl::StrCat("cannot create ", dir, ": ", error.message()));
  auto handle = std::make_unique<Handle>();
  FSDPD_ASSIGN_OR_RETURN(handle->lock_fd, TakeLock(dir + "/LOCK"));
  const std::string path = dir + "/fsdpd.db";
  absl::Status connected = handle->Connect(path, /*alone=*/false);
  if (absl::IsResourceExhausted(connected)) connected = handle->Connect(path, /*alone=*/true);
  FSDPD_RETURN_IF_ERROR(connected);
  handle->path = path;
  if (stat(path.c_str(), &handle->opened) != 0)
    return absl::FailedPreconditionError(absl::StrCat("cannot look at ", path, ": ", strerror(errno)));
  auto store = std::unique_ptr<SqliteStore>(new SqliteStore(std::move(handle)));
  FSDPD_ASSIGN_OR_RETURN(const int64_t last,
                         QueryInt(store->handle_->db, "SELECT value FROM counters WHERE name = 'generation'",
                                  "read the generation"));
  store->generation_ = last + 1;
  const absl::Status counted = store->CountThisLife();
  if (counted.ok()) return store;
  if (!absl::IsResourceExhausted(counted) && !absl::IsUnavailable(counted)) return counted;
  LogWarning("%s. Until then jobs are shown and cancelled, and none is taken or launched", counted.message());
  return store;
}

// SQLite goes on writing into a file that was removed, of which nothing is found after this process.
absl::Status SqliteStore::CheckIsThere() const {
  const Handle& opened = *handle_;
  struct stat now = {};
  const bool there = stat(opened.path.c_str(), &now) == 0;
  if (there && now.st_ino == opened.opened.st_ino && now.st_dev == opened.opened.st_dev)
    return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "state store: ", opened.path, there ? " is another file than" : " is no longer there, as",
      " when this coordinator started, and what is stored would be lost: put it back, or restart it"));
}

// Every write comes after it, so that what a life has stored is never of a generation that comes again.
absl::Status SqliteStore::CountThisLife() {
  FSDPD_RETURN_IF_ERROR(CheckIsThere());
  if (counted_) return absl::OkStatus();
  FSDPD_RETURN_IF_ERROR(Execute(
      handle_->db, absl::StrCat("UPDATE counters SET value = ", generation_, " WHERE name = 'generation'"),
      "count the generation"));
  counted_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<v1::Job>> SqliteStore::FindRequest(const std::string& request_id,
                                                                const v1::JobSpec& spec) {
  Statement select(handle_->db, "SELECT job FROM jobs WHERE request_id = ?");
  select.BindText(request_id);
  const int rc = select.Step();
  if (rc == SQLITE_DONE) return std::nullopt;
  if (rc != SQLITE_ROW) return StatusOf(handle_->db, rc, absl::StrCat("read request ", request_id));
  FSDPD_ASSIGN_OR_RETURN(v1::Job stored, ParseJob(select.Blob(0)));
  if (stored.spec().SerializeAsString() != spec.SerializeAsString()) {
    return absl::AlreadyExistsError(absl::StrCat("request id '", request_id, "' was used for job ",
                                                 stored.id(), " with another spec; use a new request id"));
  }
  return std::optional<v1::Job>(std::move(stored));
}

absl::StatusOr<Inserted> SqliteStore::Insert(const v1::Job& job) {
  FSDPD_RETURN_IF_ERROR(CountThisLife());
  bool folder_taken = false;
  {
    Statement insert(
        handle_->db,
        "INSERT INTO jobs (id, state, create_nanos, request_id, job, end_nanos, folder, project) SELECT "
        "?1,?2,?3,?4,?5,?6,?7,?8 WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE folder = ?7 AND end_nanos = 0) "
        "RETURNING 1");
    insert.BindText(job.id());
    insert.BindInt(job.state());
    insert.BindInt(job.create_unix_nanos());
    insert.BindTextOrNull(job.request_id());
    insert.BindBlob(job.SerializeAsString());
    insert.BindInt(EndOf(job));
    insert.BindTextOrNull(FolderOf(job.spec()));
    insert.BindTextOrNull(job.project());
    int rc = insert.Step();
    const bool inserted = rc == SQLITE_ROW;
    if (inserted) rc = insert.Step();  // The commit happens in the last step.
    if (inserted && rc == SQLITE_DONE) return Inserted{job, true};
    folder_taken = rc == SQLITE_DONE;
    if (!folder_taken && (rc != SQLITE_CONSTRAINT_UNIQUE || job.request_id().empty())) {
      return StatusOf(handle_->db, rc, absl::StrCat("insert job ", job.id()));
    }
  }
  if (folder_taken && job.request_id().empty()) return FolderTaken(job);
  // The unique request id decided, in the insert's own transaction. Where its job was deleted since, the
  // caller's next try finds nobody in its way.
  FSDPD_ASSIGN_OR_RETURN(std::optional<v1::Job> stored, FindRequest(job.request_id(), job.spec()));
  if (!stored.has_value() && folder_taken) return FolderTaken(job);
  if (!stored.has_value()) return absl::AlreadyExistsError(absl::StrCat("job id ", job.id(), " is in use"));
  return Inserted{std::move(*stored), false};
}

absl::Status SqliteStore::Update(const v1::Job& job) {
  FSDPD_RETURN_IF_ERROR(CountThisLife());
  // RETURNING instead of sqlite3_changes(), which another thread's statement may have set meanwhile.
  Statement update(
      handle_->db,
      "UPDATE jobs SET state = ?1, job = ?2, end_nanos = ?3 WHERE id = ?4 AND (?3 > 0 OR end_nanos "
      "= 0 OR NOT EXISTS (SELECT 1 FROM jobs AS other WHERE other.folder = jobs.folder AND "
      "other.end_nanos = 0)) RETURNING 1");
  update.BindInt(job.state());
  update.BindBlob(job.SerializeAsString());
  update.BindInt(EndOf(job));
  update.BindText(job.id());
  int rc = update.Step();
  if (rc == SQLITE_DONE) {
    FSDPD_RETURN_IF_ERROR(Get(job.id()).status());
    return FolderTaken(job);
  }
  if (rc == SQLITE_ROW) rc = update.Step();  // The commit happens in the last step.
  return rc == SQLITE_DONE ? absl::OkStatus()
                           : StatusOf(handle_->db, rc, absl::StrCat("update job ", job.id()));
}

// One statement is one transaction; BEGIN and COMMIT would take in what other threads store meanwhile.
absl::Status SqliteStore::UpdateAll(const std::vector<const v1::Job*>& jobs) {
  FSDPD_RETURN_IF_ERROR(CountThisLife());
  for (size_t begin = 0; begin < jobs.size(); begin += kJobsPerUpdate) {
    const size_t end = std::min(jobs.size(), begin + kJobsPerUpdate);
    std::string rows = "(?,?,?,?)";
    for (size_t i = begin + 1; i < end; ++i) rows += ",(?,?,?,?)";
    Statement update(
        handle_->db,
        absl::StrCat("UPDATE jobs SET state = new.column2, job = new.column3, end_nanos = new.column4 "
                     "FROM (VALUES ",
                     rows, ") AS new WHERE jobs.id = new.column1"));
    for (size_t i = begin; i < end; ++i) {
      update.BindText(jobs[i]->id());
      update.BindInt(jobs[i]->state());
      update.BindBlob(jobs[i]->SerializeAsString());
      update.BindInt(EndOf(*jobs[i]));
    }
    const int rc = update.Step();
    if (rc != SQLITE_DONE) return StatusOf(handle_->db, rc, absl::StrCat("update ", end - begin, " jobs"));
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::Delete(const std::string& id) {
  FSDPD_RETURN_IF_ERROR(CountThisLife());
  Statement remove(handle_->db, "DELETE FROM jobs WHERE id = ? RETURNING 1");
  remove.BindText(id);
  int rc = remove.Step();
  if (rc == SQLITE_DONE) return absl::NotFoundError(absl::StrCat("no job '", id, "'"));
  if (rc == SQLITE_ROW) rc = remove.Step();
  return rc == SQLITE_DONE ? absl::OkStatus() : StatusOf(handle_->db, rc, absl::StrCat("delete job ", id));
}

absl::StatusOr<std::vector<std::string>> SqliteStore::ForgetEnded(const Retention& retention, absl::Time now,
                                                                  int limit) {
  // Asked first: what changes nothing needs no room on the disk.
  const int64_t before =
      retention.time == absl::InfiniteDuration() ? 0 : absl::ToUnixNanos(now - retention.time);
  std::vector<std::string> ids;
  {
    Statement old(
        handle_->db,
        "SELECT id FROM jobs WHERE end_nanos > 0 AND (end_nanos < ? OR id IN (SELECT id FROM jobs WHERE "
        "end_nanos > 0 ORDER BY end_nanos DESC, id DESC LIMIT -1 OFFSET ?)) ORDER BY end_nanos, id LIMIT ?");
    old.BindInt(before);
    old.BindInt(retention.jobs);
    old.BindInt(limit);
    int rc;
    while ((rc = old.Step()) == SQLITE_ROW) ids.push_back(old.Blob(0));
    if (rc != SQLITE_DONE) return StatusOf(handle_->db, rc, "look for old jobs");
  }
  if (ids.empty()) return ids;
  FSDPD_RETURN_IF_ERROR(CountThisLife());
  std::string places = "?";
  for (size_t i = 1; i < ids.size(); ++i) places += ",?";
  Statement remove(handle_->db, absl::StrCat("DELETE FROM jobs WHERE id IN (", places, ")"));
  for (const std::string& id : ids) remove.BindText(id);
  const int rc = remove.Step();
  if (rc != SQLITE_DONE) return StatusOf(handle_->db, rc, "forget old jobs");
  return ids;
}

absl::StatusOr<v1::Job> SqliteStore::Get(const std::string& id) {
  Statement select(handle_->db, "SELECT job FROM jobs WHERE id = ?");
  select.BindText(id);
  const int rc = select.Step();
  if (rc == SQLITE_DONE) return absl::NotFoundError(absl::StrCat("no job '", id, "'"));
  if (rc != SQLITE_ROW) return StatusOf(handle_->db, rc, absl::StrCat("read job ", id));
  return ParseJob(select.Blob(0));
}

absl::StatusOr<JobPage> SqliteStore::List(const JobQuery& query) {
  std::string where = "1";
  if (!query.states.empty()) absl::StrAppend(&where, " AND state IN (", InStates(query.states), ")");
  if (!query.folder.empty()) absl::StrAppend(&where, " AND folder = ?");
  if (!query.project.empty()) absl::StrAppend(&where, " AND project = ?");
  if (query.after_cursor) absl::StrAppend(&where, " AND (create_nanos, id) < (?, ?)");
  Statement select(handle_->db, absl::StrCat("SELECT job FROM jobs WHERE ", where,
                                             " ORDER BY create_nanos DESC, id DESC LIMIT ", query.limit + 1));
  if (!query.folder.empty()) select.BindText(query.folder);
  if (!query.project.empty()) select.BindText(query.project);
  if (query.after_cursor) {
    select.BindInt(query.cursor.create_unix_nanos);
    select.BindText(query.cursor.id);
  }
  return ReadJobs(&select, query.limit, query.max_bytes, "list jobs");
}

absl::StatusOr<std::vector<v1::Job>> SqliteStore::LiveJobs() {
  Statement select(handle_->db, absl::StrCat("SELECT job FROM jobs WHERE state IN (",
                                             InStates(LiveJobStates()), ") ORDER BY create_nanos, id"));
  FSDPD_ASSIGN_OR_RETURN(JobPage all, ReadJobs(&select, SIZE_MAX, SIZE_MAX, "load jobs"));
  return std::move(all.jobs);
}

absl::Status SqliteStore::SetCordon(const std::string& node, const v1::Cordon& cordon) {
  FSDPD_RETURN_IF_ERROR(CountThisLife());
  Statement insert(handle_->db, "INSERT OR REPLACE INTO cordons (node, cordon) VALUES (?,?)");
  insert.BindText(node);
  insert.BindBlob(cordon.SerializeAsString());
  const int rc = insert.Step();
  return rc == SQLITE_DONE ? absl::OkStatus() : StatusOf(handle_->db, rc, absl::StrCat("cordon ", node));
}

absl::Status SqliteStore::RemoveCordon(const std::string& node) {
  FSDPD_RETURN_IF_ERROR(CountThisLife());
  Statement remove(handle_->db, "DELETE FROM cordons WHERE node = ?");
  remove.BindText(node);
  const int rc = remove.Step();
  return rc == SQLITE_DONE ? absl::OkStatus() : StatusOf(handle_->db, rc, absl::StrCat("uncordon ", node));
}

absl::StatusOr<std::map<std::string, v1::Cordon>> SqliteStore::Cordons() {
  std::map<std::string, v1::Cordon> cordons;
  Statement select(handle_->db, "SELECT node, cordon FROM cordons");
  int rc;
  while ((rc = select.Step()) == SQLITE_ROW) {
    if (!cordons[select.Blob(0)].ParseFromString(select.Blob(1)))
      return absl::DataLossError("state store: a stored cordon cannot be read");
  }
  if (rc != SQLITE_DONE) return StatusOf(handle_->db, rc, "read cordons");
  return cordons;
}

absl::Status SqliteStore::SetNodes(const v1::ListNodesResponse& nodes) {
  FSDPD_RETURN_IF_ERROR(CountThisLife());
  Statement insert(handle_->db, "INSERT OR REPLACE INTO known_nodes (row, nodes) VALUES (1, ?)");
  insert.BindBlob(nodes.SerializeAsString());
  const int rc = insert.Step();
  return rc == SQLITE_DONE ? absl::OkStatus() : StatusOf(handle_->db, rc, "store the nodes");
}

absl::StatusOr<v1::ListNodesResponse> SqliteStore::Nodes() {
  v1::ListNodesResponse nodes;
  Statement select(handle_->db, "SELECT nodes FROM known_nodes");
  const int rc = select.Step();
  if (rc == SQLITE_DONE) return nodes;
  if (rc != SQLITE_ROW) return StatusOf(handle_->db, rc, "read the nodes");
  if (!nodes.ParseFromString(select.Blob(0)))
    return absl::DataLossError("state store: the stored nodes cannot be read");
  return nodes;
}

}  // namespace fsdpd
