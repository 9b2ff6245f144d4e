#include "coordinator/store/sqlite_store.h"

#include <absl/strings/str_cat.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/job_folder.h"
#include "coordinator/job_machine.h"
#include "coordinator/store/sqlite_query.h"
#include "coordinator/store/sqlite_schema.h"

namespace fsdpd {
namespace {

// Four values each, and two of a node; a statement may bind 32,766.
constexpr size_t kJobsPerUpdate = 4096;
constexpr int kNodesPerUpdate = 4096;

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
  const std::string path = StateFileIn(dir);
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
  FSDPD_ASSIGN_OR_RETURN(stored, SameRequest(std::move(stored), spec));
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

absl::Status SqliteStore::UpdateNodes(const v1::ListNodesResponse& changed,
                                      const std::vector<std::string>& gone) {
  FSDPD_RETURN_IF_ERROR(CountThisLife());
  for (int begin = 0; begin < changed.nodes_size(); begin += kNodesPerUpdate) {
    const int end = std::min(changed.nodes_size(), begin + kNodesPerUpdate);
    std::string rows = "(?,?)";
    for (int i = begin + 1; i < end; ++i) rows += ",(?,?)";
    Statement insert(handle_->db, absl::StrCat("INSERT OR REPLACE INTO nodes (name, node) VALUES ", rows));
    for (int i = begin; i < end; ++i) {
      insert.BindText(changed.nodes(i).name());
      insert.BindBlob(changed.nodes(i).SerializeAsString());
    }
    const int rc = insert.Step();
    if (rc != SQLITE_DONE) return StatusOf(handle_->db, rc, "store the nodes");
  }
  for (const std::string& name : gone) {
    Statement remove(handle_->db, "DELETE FROM nodes WHERE name = ?");
    remove.BindText(name);
    const int rc = remove.Step();
    if (rc != SQLITE_DONE) return StatusOf(handle_->db, rc, absl::StrCat("forget node ", name));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ListNodesResponse> SqliteStore::Nodes() {
  v1::ListNodesResponse nodes;
  Statement select(handle_->db, "SELECT node FROM nodes ORDER BY name");
  int rc;
  while ((rc = select.Step()) == SQLITE_ROW) {
    if (!nodes.add_nodes()->ParseFromString(select.Blob(0)))
      return absl::DataLossError("state store: a stored node cannot be read");
  }
  if (rc != SQLITE_DONE) return StatusOf(handle_->db, rc, "read the nodes");
  return nodes;
}

}  // namespace fsdpd
