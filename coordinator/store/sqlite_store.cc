#include "coordinator/store/sqlite_store.h"

#include <absl/strings/str_cat.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "coordinator/job/directory_owner.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/store/sqlite_query.h"
#include "coordinator/store/sqlite_schema.h"

namespace fsdpd {
namespace {

absl::StatusOr<UniqueFd> TakeLock(const std::string& path) {
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.valid())
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": cannot be opened: ", strerror(errno), " [STATE_NOT_USABLE]"));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  return absl::FailedPreconditionError(absl::StrCat(
      path, ": held by another coordinator; stop it, or use another state directory [STATE_IN_USE]"));
}

absl::Status NoSuchJob(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("no job '", id, "'"));
}

absl::Status Unreadable(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("state store: a stored ", what, " cannot be read"));
}

}  // namespace

struct SqliteStore::Handle {
  ~Handle() { sqlite3_close(db); }
  // `exclusive`: no other process may read the file, and the WAL index is in this process's memory, not in a
  // -shm file.
  absl::Status Connect(const std::string& path, bool exclusive) {
    sqlite3_close(std::exchange(db, nullptr));
    MakePrivate(path);
    const int rc = sqlite3_open_v2(
        path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
    if (rc != SQLITE_OK) return StatusOf(db, rc, absl::StrCat("open ", path));
    sqlite3_extended_result_codes(db, 1);
    // Must precede the first read; it has no effect afterwards.
    if (exclusive) FSDPD_RETURN_IF_ERROR(Execute(db, "PRAGMA locking_mode=EXCLUSIVE", "lock the file"));
    FSDPD_RETURN_IF_ERROR(PrepareSchema(db, path));
    return Execute(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;", "set up");
  }

  UniqueFd lock;
  sqlite3* db = nullptr;
  std::string path;
  struct stat opened = {};
};

SqliteStore::SqliteStore(std::unique_ptr<Handle> handle, size_t max_events)
    : handle_(std::move(handle)), log_(max_events) {}
SqliteStore::~SqliteStore() = default;

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const std::string& dir, size_t max_events) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error)
    return absl::FailedPreconditionError(
        absl::StrCat(dir, ": cannot be created: ", error.message(), " [STATE_NOT_USABLE]"));
  const std::string path = StateFileIn(dir);
  if (!std::filesystem::exists(path, error) && std::filesystem::exists(path + kPartialSuffix, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, kPartialSuffix,
                     ": partial state of a restore that did not finish; restore again, or remove it ",
                     "to start with an empty state [STATE_NOT_USABLE]"));
  }
  auto handle = std::make_unique<Handle>();
  FSDPD_ASSIGN_OR_RETURN(handle->lock, TakeLock(dir + "/LOCK"));
  absl::Status connected = handle->Connect(path, /*exclusive=*/false);
  if (absl::IsResourceExhausted(connected)) connected = handle->Connect(path, /*exclusive=*/true);
  FSDPD_RETURN_IF_ERROR(connected);
  handle->path = path;
  if (stat(path.c_str(), &handle->opened) != 0)
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": cannot be read: ", strerror(errno), " [STATE_NOT_USABLE]"));
  auto store = std::unique_ptr<SqliteStore>(new SqliteStore(std::move(handle), max_events));
  FSDPD_ASSIGN_OR_RETURN(const int64_t last,
                         QueryInt(store->handle_->db, "SELECT value FROM counters WHERE name = 'generation'",
                                  "read the generation"));
  store->generation_ = last + 1;
  FSDPD_RETURN_IF_ERROR(store->LoadEvents());
  const absl::Status counted = store->StoreGeneration();
  if (counted.ok()) return store;
  if (!absl::IsResourceExhausted(counted) && !absl::IsUnavailable(counted)) return counted;
  LogWarning(
      "opened the state read-only, jobs cannot be submitted or launched until a write succeeds error=%s",
      counted.message());
  return store;
}

// SQLite continues to write to an unlinked file, whose content is lost when this process ends.
absl::Status SqliteStore::CheckFileInPlace() const {
  const Handle& opened = *handle_;
  struct stat now = {};
  const bool there = stat(opened.path.c_str(), &now) == 0;
  if (there && now.st_ino == opened.opened.st_ino && now.st_dev == opened.opened.st_dev)
    return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("state store: ", opened.path,
                                             there ? ": was replaced" : ": was removed or moved",
                                             " while in use; put it back, or restart the coordinator"));
}

// Precedes every write, so that no stored data belongs to a generation that a later run uses again.
absl::Status SqliteStore::StoreGeneration() {
  FSDPD_RETURN_IF_ERROR(CheckFileInPlace());
  if (generation_stored_) return absl::OkStatus();
  FSDPD_RETURN_IF_ERROR(Execute(
      handle_->db, absl::StrCat("UPDATE counters SET value = ", generation_, " WHERE name = 'generation'"),
      "increment the generation"));
  generation_stored_ = true;
  return absl::OkStatus();
}

absl::StatusOr<JobPage> SqliteStore::ReadJobs(Statement* statement, const JobQuery& query,
                                              absl::string_view doing) const {
  JobPage page;
  size_t bytes = 0;
  int rc;
  while ((rc = statement->Step()) == SQLITE_ROW) {
    page.more = page.jobs.size() >= static_cast<size_t>(query.limit) || bytes >= query.max_bytes;
    if (page.more) return page;
    const std::string blob = statement->Blob(0);
    FSDPD_ASSIGN_OR_RETURN(v1::Job job, ReadJob(blob));
    page.end = PlaceOf(query, job);
    bytes += blob.size();
    page.jobs.push_back(std::move(job));
  }
  if (rc != SQLITE_DONE) return StatusOf(statement->db(), rc, doing);
  return page;
}

absl::StatusOr<v1::Job> SqliteStore::ReadJob(const std::string& blob) const {
  FSDPD_ASSIGN_OR_RETURN(v1::Job job, ParseJob(blob));
  log_.AddTo(&job);
  return job;
}

absl::Status SqliteStore::LoadEvents() {
  Events events;
  Statement select(handle_->db, "SELECT event FROM events ORDER BY sequence");
  FSDPD_RETURN_IF_ERROR(select.Each("read the events", [&] {
    return events.emplace_back().ParseFromString(select.Blob(0)) ? absl::OkStatus() : Unreadable("event");
  }));
  log_.Load(std::move(events), generation_);
  return absl::OkStatus();
}

// A ROLLBACK may have failed. New statements would join that transaction and be rolled back with it.
absl::Status SqliteStore::RollBackOpenTransaction(const std::string& doing) {
  if (sqlite3_get_autocommit(handle_->db) != 0) return absl::OkStatus();
  return Execute(handle_->db, "ROLLBACK", doing);
}

// Readers of jobs may briefly see uncommitted changes, because they share the connection. Readers of events
// and FindRequest(), which confirms to a client that a job was accepted, never do: the log is updated after
// the commit.
absl::Status SqliteStore::Write(const std::vector<const v1::Job*>& jobs, const Events& news,
                                const std::string& doing, const std::function<absl::Status()>& write) {
  const WriterLock::Hold hold(&writer_lock_);
  FSDPD_RETURN_IF_ERROR(RollBackOpenTransaction(doing));
  FSDPD_RETURN_IF_ERROR(StoreGeneration());
  Events events = log_.Number(jobs, news);
  if (events.empty()) return InTransaction(handle_->db, doing, write);
  const int64_t forget_through = log_.ForgetThrough(events, absl::FromUnixNanos(events.back().unix_nanos()));
  FSDPD_RETURN_IF_ERROR(InTransaction(handle_->db, doing, [&]() -> absl::Status {
    FSDPD_RETURN_IF_ERROR(write());
    FSDPD_RETURN_IF_ERROR(StoreEvents(events));
    return ForgetEvents(forget_through, {});
  }));
  log_.Append(std::move(events), forget_through);
  ThinEvents();
  return absl::OkStatus();
}

absl::Status SqliteStore::StoreEvents(const Events& events, bool replace) {
  return RunForAll(
      handle_->db,
      absl::StrCat("INSERT ", replace ? "OR REPLACE " : "", "INTO events (sequence, event) VALUES $0"),
      "(?,?)", events.size(), "store events", [&](Statement* insert, size_t i) {
        insert->Bind(events[i].sequence());
        insert->Bind(SqlBlob{events[i].SerializeAsString()});
      });
}

absl::Status SqliteStore::ForgetEvents(int64_t through, const std::vector<int64_t>& gone) {
  const std::string doing = "delete old events";
  if (through > 0) {
    Statement forget(handle_->db, "DELETE FROM events WHERE sequence <= ?", through);
    FSDPD_RETURN_IF_ERROR(forget.Run(doing));
  }
  return RunForAll(handle_->db, "DELETE FROM events WHERE sequence IN ($0)", "?", gone.size(), doing,
                   [&](Statement* forget, size_t i) { forget->Bind(gone[i]); });
}

// A failure here does not affect the write; the next write tries again.
void SqliteStore::ThinEvents() {
  const ThinnedEvents thinned = log_.Thin(SIZE_MAX);
  if (thinned.changes() == 0) return;
  const absl::Status done = InTransaction(handle_->db, "delete old events", [&]() -> absl::Status {
    FSDPD_RETURN_IF_ERROR(ForgetEvents(thinned.through, thinned.gone));
    return StoreEvents(thinned.gaps, /*replace=*/true);
  });
  if (done.ok()) log_.Forget(thinned);
}

absl::StatusOr<std::optional<v1::Job>> SqliteStore::FindRequest(const std::string& request_id,
                                                                const v1::JobSpec& spec) {
  const std::string doing = absl::StrCat("read request ", request_id);
  const WriterLock::Hold hold(&writer_lock_);
  FSDPD_RETURN_IF_ERROR(RollBackOpenTransaction(doing));
  Statement select(handle_->db, "SELECT job FROM jobs WHERE request_id = ?", request_id);
  const int rc = select.Step();
  if (rc == SQLITE_DONE) return std::nullopt;
  if (rc != SQLITE_ROW) return StatusOf(handle_->db, rc, doing);
  FSDPD_ASSIGN_OR_RETURN(v1::Job stored, ReadJob(select.Blob(0)));
  FSDPD_ASSIGN_OR_RETURN(stored, SameRequest(std::move(stored), spec));
  return std::optional<v1::Job>(std::move(stored));
}

absl::StatusOr<Inserted> SqliteStore::Insert(const v1::Job& job) {
  bool directory_in_use = false, known_request = false;
  const std::string doing = absl::StrCat("insert job ", job.id());
  const absl::Status stored = Write({&job}, {}, doing, [&]() -> absl::Status {
    // The unary + excludes the index on end_nanos: the index on the column folder is better, as there may be
    // many live jobs.
    Statement insert(
        handle_->db,
        "INSERT INTO jobs (id, state, create_nanos, request_id, job, end_nanos, folder, project) SELECT "
        "?1,?2,?3,?4,?5,?6,?7,?8 WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE folder = ?7 AND +end_nanos = 0) "
        "RETURNING 1",
        job.id(), job.state(), job.create_unix_nanos(), SqlTextOrNull{job.request_id()},
        SqlBlob{StoredBytes(job)}, EndOf(job), SqlTextOrNull{DirectoryOf(job.spec())},
        SqlTextOrNull{job.project()});
    int rc = insert.Step();
    const bool inserted = rc == SQLITE_ROW;
    if (inserted) rc = insert.Step();
    if (inserted && rc == SQLITE_DONE) return StoreLabels(handle_->db, job);
    directory_in_use = rc == SQLITE_DONE;
    known_request = rc == SQLITE_CONSTRAINT_UNIQUE && !job.request_id().empty();
    return directory_in_use ? DirectoryTaken(job) : StatusOf(handle_->db, rc, doing);
  });
  if (stored.ok()) return Inserted{WithEventsOf(log_, job), true};
  if (!known_request && (!directory_in_use || job.request_id().empty())) return stored;
  // The UNIQUE constraint on request_id decided within the insert's transaction. If that job was deleted
  // since, the caller's retry succeeds.
  FSDPD_ASSIGN_OR_RETURN(std::optional<v1::Job> earlier, FindRequest(job.request_id(), job.spec()));
  if (!earlier.has_value() && directory_in_use) return DirectoryTaken(job);
  if (!earlier.has_value()) return absl::AlreadyExistsError(absl::StrCat("job id ", job.id(), " is in use"));
  return Inserted{std::move(*earlier), false};
}

absl::Status SqliteStore::Update(const v1::Job& job) {
  bool no_row = false;
  const std::string doing = absl::StrCat("update job ", job.id());
  const absl::Status stored = Write({&job}, {}, doing, [&] {
    // Unary + as above. RETURNING, because sqlite3_changes() may report another thread's statement.
    Statement update(
        handle_->db,
        "UPDATE jobs SET state = ?1, job = ?2, end_nanos = ?3 WHERE id = ?4 AND (?3 > 0 OR end_nanos "
        "= 0 OR NOT EXISTS (SELECT 1 FROM jobs AS other WHERE other.folder = jobs.folder AND "
        "+other.end_nanos = 0)) RETURNING 1",
        job.state(), SqlBlob{StoredBytes(job)}, EndOf(job), job.id());
    bool any = false;
    const absl::Status updated = update.Each(doing, [&] { any = true; });
    no_row = updated.ok() && !any;
    return no_row ? DirectoryTaken(job) : updated;
  });
  if (no_row) FSDPD_RETURN_IF_ERROR(Get(job.id()).status());
  return stored;
}

// Updates all jobs that exist, or none. RETURNING yields the ids that exist.
std::vector<absl::Status> SqliteStore::UpdateAll(const std::vector<const v1::Job*>& all) {
  std::vector<const v1::Job*> jobs = all;
  std::set<std::string> found;
  const auto is_missing = [&](const v1::Job* job) { return found.count(job->id()) == 0; };
  const auto update_all = [&]() -> absl::Status {
    found.clear();
    FSDPD_RETURN_IF_ERROR(RunForAll(
        handle_->db,
        "UPDATE jobs SET state = new.column2, job = new.column3, end_nanos = new.column4 FROM (VALUES $0) AS "
        "new WHERE jobs.id = new.column1 RETURNING id",
        "(?,?,?,?)", jobs.size(), absl::StrCat("update ", jobs.size(), " jobs"),
        [&](Statement* update, size_t i) {
          update->Bind(jobs[i]->id());
          update->Bind(jobs[i]->state());
          update->Bind(SqlBlob{StoredBytes(*jobs[i])});
          update->Bind(EndOf(*jobs[i]));
        },
        [&](Statement* update) { found.insert(update->Blob(0)); }));
    if (std::none_of(jobs.begin(), jobs.end(), is_missing)) return absl::OkStatus();
    return absl::NotFoundError("a job is not stored");
  };
  const auto update = [&] {
    return Write(jobs, {}, absl::StrCat("update ", jobs.size(), " jobs"), update_all);
  };
  absl::Status stored = update();
  if (absl::IsNotFound(stored)) {  // Again without missing jobs, whose events must not be stored.
    jobs.erase(std::remove_if(jobs.begin(), jobs.end(), is_missing), jobs.end());
    stored = update();
  }
  std::vector<absl::Status> results;
  for (const v1::Job* job : all)
    results.push_back(stored.ok() && is_missing(job) ? NoSuchJob(job->id()) : stored);
  return results;
}

absl::Status SqliteStore::Delete(const std::string& id, const Events& news) {
  const std::string doing = absl::StrCat("delete job ", id);
  FSDPD_RETURN_IF_ERROR(Write({}, news, doing, [&]() -> absl::Status {
    Statement remove(handle_->db, "DELETE FROM jobs WHERE id = ? RETURNING 1", id);
    bool any = false;
    FSDPD_RETURN_IF_ERROR(remove.Each(doing, [&] { any = true; }));
    return any ? absl::OkStatus() : NoSuchJob(id);
  }));
  log_.ForgetJob(id);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> SqliteStore::ForgetEnded(const Retention& retention, absl::Time now,
                                                                  int limit) {
  // Reads first: if there is nothing to delete, no disk space is needed.
  const int64_t before =
      retention.time == absl::InfiniteDuration() ? 0 : absl::ToUnixNanos(now - retention.time);
  std::vector<std::string> ids;
  Statement old(
      handle_->db,
      "SELECT id FROM jobs WHERE end_nanos > 0 AND (end_nanos < ? OR id IN (SELECT id FROM jobs WHERE "
      "end_nanos > 0 ORDER BY end_nanos DESC, id DESC LIMIT -1 OFFSET ?)) ORDER BY end_nanos, id LIMIT ?",
      before, retention.jobs, limit);
  FSDPD_RETURN_IF_ERROR(old.Each("find old jobs", [&] { ids.push_back(old.Blob(0)); }));
  if (ids.empty()) return ids;
  const std::string doing = "delete old jobs";
  FSDPD_RETURN_IF_ERROR(Write({}, {}, doing, [&] {
    return RunForAll(handle_->db, "DELETE FROM jobs WHERE id IN ($0)", "?", ids.size(), doing,
                     [&](Statement* remove, size_t i) { remove->Bind(ids[i]); });
  }));
  for (const std::string& id : ids) log_.ForgetJob(id);
  return ids;
}

absl::StatusOr<v1::Job> SqliteStore::Get(const std::string& id) {
  Statement select(handle_->db, "SELECT job FROM jobs WHERE id = ?", id);
  const int rc = select.Step();
  if (rc == SQLITE_DONE) return NoSuchJob(id);
  if (rc != SQLITE_ROW) return StatusOf(handle_->db, rc, absl::StrCat("read job ", id));
  return ReadJob(select.Blob(0));
}

absl::StatusOr<JobPage> SqliteStore::List(const JobQuery& query) {
  Statement select(handle_->db, SelectJobs(query));
  BindQuery(query, &select);
  return ReadJobs(&select, query, "list jobs");
}

absl::StatusOr<std::vector<v1::Job>> SqliteStore::LiveJobs() {
  Statement select(handle_->db, absl::StrCat("SELECT job FROM jobs WHERE state IN (",
                                             InStates(LiveJobStates()), ") ORDER BY create_nanos, id"));
  JobQuery everything;
  everything.limit = INT_MAX;
  FSDPD_ASSIGN_OR_RETURN(JobPage all, ReadJobs(&select, everything, "load jobs"));
  return std::move(all.jobs);
}

absl::Status SqliteStore::SetCordon(const std::string& node, const v1::Cordon& cordon, const Events& news) {
  const std::string doing = absl::StrCat("cordon ", node);
  return Write({}, news, doing, [&] {
    return Statement(handle_->db, "INSERT OR REPLACE INTO cordons (node, cordon) VALUES (?,?)", node,
                     SqlBlob{cordon.SerializeAsString()})
        .Run(doing);
  });
}

absl::Status SqliteStore::RemoveCordon(const std::string& node, const Events& news) {
  const std::string doing = absl::StrCat("uncordon ", node);
  return Write({}, news, doing,
               [&] { return Statement(handle_->db, "DELETE FROM cordons WHERE node = ?", node).Run(doing); });
}

absl::StatusOr<std::map<std::string, v1::Cordon>> SqliteStore::Cordons() {
  std::map<std::string, v1::Cordon> cordons;
  Statement select(handle_->db, "SELECT node, cordon FROM cordons");
  FSDPD_RETURN_IF_ERROR(select.Each("read cordons", [&] {
    const bool parsed = cordons[select.Blob(0)].ParseFromString(select.Blob(1));
    return parsed ? absl::OkStatus() : Unreadable("cordon");
  }));
  return cordons;
}

absl::Status SqliteStore::UpdateNodes(const v1::ListNodesResponse& changed,
                                      const std::vector<std::string>& gone, const Events& news) {
  const std::string doing = "store the nodes";
  return Write({}, news, doing, [&]() -> absl::Status {
    const auto& nodes = changed.nodes();
    FSDPD_RETURN_IF_ERROR(RunForAll(handle_->db, "INSERT OR REPLACE INTO nodes (name, node) VALUES $0",
                                    "(?,?)", nodes.size(), doing, [&](Statement* insert, size_t i) {
                                      insert->Bind(nodes[i].name());
                                      insert->Bind(SqlBlob{nodes[i].SerializeAsString()});
                                    }));
    for (const std::string& name : gone) {
      Statement remove(handle_->db, "DELETE FROM nodes WHERE name = ?", name);
      FSDPD_RETURN_IF_ERROR(remove.Run(absl::StrCat("delete node ", name)));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<v1::ListNodesResponse> SqliteStore::Nodes() {
  v1::ListNodesResponse nodes;
  Statement select(handle_->db, "SELECT node FROM nodes ORDER BY name");
  FSDPD_RETURN_IF_ERROR(select.Each("read the nodes", [&] {
    return nodes.add_nodes()->ParseFromString(select.Blob(0)) ? absl::OkStatus() : Unreadable("node");
  }));
  return nodes;
}

}  // namespace fsdpd
