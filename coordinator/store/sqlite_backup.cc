#include "coordinator/store/sqlite_backup.h"

#include <absl/strings/str_cat.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/process/error_line.h"
#include "base/unique_fd.h"
#include "coordinator/store/sqlite_query.h"
#include "coordinator/store/sqlite_schema.h"
#include "coordinator/store/state_digest.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;

constexpr int kBusyMs = 5000;  // Longer than a coordinator's WAL checkpoint blocks readers.
constexpr char kInMemory[] = ":memory:";

struct CloseDatabase {
  void operator()(sqlite3* db) const { sqlite3_close(db); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

absl::StatusOr<Database> OpenFile(const std::string& path, int flags) {
  sqlite3* opened = nullptr;
  const int rc = sqlite3_open_v2(path.c_str(), &opened, flags, nullptr);
  Database db(opened);
  if (rc != SQLITE_OK) return StatusOf(opened, rc, absl::StrCat("open ", path));
  sqlite3_extended_result_codes(opened, 1);
  sqlite3_busy_timeout(opened, kBusyMs);
  return db;
}

// Copies all pages in one step, which gives a consistent snapshot.
absl::Status CopyPages(sqlite3* from, sqlite3* to, const std::string& doing) {
  sqlite3_backup* backup = sqlite3_backup_init(to, "main", from, "main");
  if (backup == nullptr) return StatusOf(to, sqlite3_extended_errcode(to), doing);
  sqlite3_backup_step(backup, -1);
  const int rc = sqlite3_backup_finish(backup);
  return rc == SQLITE_OK ? absl::OkStatus() : StatusOf(to, rc, doing);
}

std::string KeyOf(const v1::Event& event) { return absl::StrCat(event.sequence()); }
std::string KeyOf(const v1::Node& node) { return node.name(); }

// Checks that each message of a table can be parsed and has its row's key. Finds damage in files without a
// checksum, such as a copied state file. A file of an older schema may not have the table.
template <typename Message>
absl::Status CheckMessages(sqlite3* db, const std::string& path, const std::string& table,
                           const std::string& column, const std::string& key) {
  bool known = false;
  Statement tables(db, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", table);
  FSDPD_RETURN_IF_ERROR(tables.Each(absl::StrCat("stat ", table, " in ", path), [&] { known = true; }));
  if (!known) return absl::OkStatus();
  Statement rows(db, absl::StrCat("SELECT ", column, ", ", key, " FROM ", table));
  int64_t row = 0;
  return rows.Each(absl::StrCat("read ", table, " of ", path), [&]() -> absl::Status {
    ++row;
    Message message;
    bool valid = message.ParseFromString(rows.Blob(0));
    if constexpr (!std::is_same_v<Message, v1::Cordon>) valid = valid && KeyOf(message) == rows.Blob(1);
    if (valid) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(path, ": damaged: row ", row, " of table ", table, " cannot be read"));
  });
}

// Checks SQLite's integrity and that all messages can be parsed.
absl::StatusOr<CopiedState> CheckState(sqlite3* db, const std::string& path) {
  CopiedState state;
  FSDPD_ASSIGN_OR_RETURN(state.schema, ReadSchemaVersion(db, path));
  if (state.schema == 0)
    return absl::DataLossError(absl::StrCat(path, ": not a coordinator state (it has no schema)"));
  Statement check(db, "PRAGMA integrity_check(1)");
  const int checked = check.Step();
  if (checked != SQLITE_ROW) return StatusOf(db, checked, absl::StrCat("check ", path));
  if (const std::string found = check.Blob(0); found != "ok")
    return absl::DataLossError(absl::StrCat(path, ": damaged: ", found));
  Statement jobs(db, "SELECT job, id FROM jobs");
  FSDPD_RETURN_IF_ERROR(jobs.Each(absl::StrCat("read the jobs of ", path), [&]() -> absl::Status {
    const absl::StatusOr<v1::Job> job = ParseJob(jobs.Blob(0));
    if (!job.ok() || job->id() != jobs.Blob(1))
      return absl::DataLossError(absl::StrCat(path, ": damaged: job ", jobs.Blob(1), " cannot be read"));
    ++state.jobs;
    return absl::OkStatus();
  }));
  FSDPD_RETURN_IF_ERROR(CheckMessages<v1::Event>(db, path, "events", "event", "sequence"));
  FSDPD_RETURN_IF_ERROR(CheckMessages<v1::Cordon>(db, path, "cordons", "cordon", "node"));
  FSDPD_RETURN_IF_ERROR(CheckMessages<v1::Node>(db, path, "nodes", "node", "name"));
  return state;
}

absl::Status SyncPath(const std::string& path, int flags) {
  const UniqueFd fd(open(path.c_str(), flags | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(absl::StrCat("open ", path));
  return fsync(fd.get()) == 0 ? absl::OkStatus() : ErrnoStatus(absl::StrCat("write to disk ", path));
}

std::string DirectoryOf(const std::string& file) {
  return fs::path(file).has_parent_path() ? fs::path(file).parent_path().string() : ".";
}

// link() fails if the file was created meanwhile; rename() would replace it.
absl::Status LinkIntoPlace(const std::string& made, const std::string& name) {
  FSDPD_RETURN_IF_ERROR(SyncPath(made, O_RDONLY));
  if (link(made.c_str(), name.c_str()) != 0) {
    return errno == EEXIST
               ? absl::AlreadyExistsError(absl::StrCat(name, ": already exists; choose another name"))
               : ErrnoStatus(absl::StrCat("name the copy ", name));
  }
  return SyncPath(DirectoryOf(name), O_RDONLY | O_DIRECTORY);
}

absl::Status CheckSource(const std::string& path) {
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0) {
    return errno == ENOENT ? absl::NotFoundError(absl::StrCat(path, ": no such file"))
                           : ErrnoStatus(absl::StrCat("open ", path));
  }
  if (S_ISDIR(file.st_mode)) return absl::NotFoundError(absl::StrCat(path, ": is a directory (want a file)"));
  if (!S_ISREG(file.st_mode)) return absl::NotFoundError(absl::StrCat(path, ": not a regular file"));
  return access(path.c_str(), R_OK) == 0 ? absl::OkStatus() : ErrnoStatus(absl::StrCat("open ", path));
}

// For a missing directory or one without permissions, SQLite only reports that it could not open a file.
// These checks return the cause.
absl::Status CheckTarget(const std::string& path) {
  const std::string directory = DirectoryOf(path);
  struct stat there = {};
  if (stat(directory.c_str(), &there) != 0) {
    return errno == ENOENT
               ? absl::NotFoundError(absl::StrCat(directory, ": no such directory; create it first"))
               : ErrnoStatus(absl::StrCat("open ", directory));
  }
  if (!S_ISDIR(there.st_mode)) return absl::NotFoundError(absl::StrCat(directory, ": not a directory"));
  if (lstat(path.c_str(), &there) == 0)
    return absl::AlreadyExistsError(absl::StrCat(path, ": already exists; choose another name"));
  if (access(directory.c_str(), W_OK | X_OK) != 0) return ErrnoStatus(absl::StrCat("write in ", directory));
  return absl::OkStatus();
}

// `checked` with the error id of files that cannot be used.
absl::Status OfFile(const absl::Status& checked) {
  if (checked.ok() || absl::IsAlreadyExists(checked)) return checked;
  return absl::Status(checked.code(), WithErrorId(checked.message(), "FILE_ERROR"));
}

// A change of the copy before it is linked into place.
using Edit = std::function<absl::Status(sqlite3*)>;

absl::StatusOr<Database> OpenSource(const std::string& from) {
  FSDPD_RETURN_IF_ERROR(OfFile(CheckSource(from)));
  return OpenFile(from, SQLITE_OPEN_READONLY);
}

absl::StatusOr<CopiedState> CopyState(sqlite3* source, const std::string& from, const std::string& to,
                                      const Edit& edit) {
  FSDPD_RETURN_IF_ERROR(OfFile(CheckTarget(to)));
  FSDPD_RETURN_IF_ERROR(ReadSchemaVersion(source, from).status());
  const std::string made = to + kPartialSuffix;
  MakePrivate(made);
  FSDPD_ASSIGN_OR_RETURN(const Database copy, OpenFile(made, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE));
  FSDPD_RETURN_IF_ERROR(CopyPages(source, copy.get(), absl::StrCat("copy ", from, " to ", to)));
  // The copy of a WAL database is in WAL mode too; its first reader would create -wal and -shm files. This
  // makes it one file.
  FSDPD_RETURN_IF_ERROR(Execute(copy.get(), "PRAGMA journal_mode=DELETE", absl::StrCat("set up ", to)));
  FSDPD_ASSIGN_OR_RETURN(CopiedState state, CheckState(copy.get(), from));
  FSDPD_RETURN_IF_ERROR(edit(copy.get()));
  FSDPD_RETURN_IF_ERROR(OfFile(LinkIntoPlace(made, to)));
  std::error_code unknown;
  state.bytes = static_cast<int64_t>(fs::file_size(to, unknown));
  return state;
}

absl::StatusOr<CopiedState> CopyAndTidy(sqlite3* source, const std::string& from, const std::string& to,
                                        const Edit& edit) {
  std::error_code ignored;
  fs::remove(to + kPartialSuffix, ignored);  // Left by a killed process.
  const absl::StatusOr<CopiedState> state = CopyState(source, from, to, edit);
  for (const char* part : {"", "-journal", "-wal", "-shm"}) fs::remove(to + kPartialSuffix + part, ignored);
  return state;
}

// The missing ones among `dir` and its parents, innermost first.
std::vector<fs::path> MissingDirectories(const std::string& dir) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path each = dir; !each.empty() && !fs::exists(each, error) && !error; each = each.parent_path())
    missing.push_back(each);
  return missing;
}

// Ignores lost+found of a fresh file system, and the partial file of a killed restore.
absl::Status MakeEmptyDirectory(const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error)
    return OfFile(absl::FailedPreconditionError(absl::StrCat(dir, ": cannot be created: ", error.message())));
  fs::directory_iterator each(dir, error);
  for (; !error && each != fs::directory_iterator(); each.increment(error)) {
    const std::string name = each->path().filename().string();
    if (name == "lost+found" || name == fs::path(StateFileIn(dir)).filename().string() + kPartialSuffix)
      continue;
    return absl::FailedPreconditionError(
        absl::StrCat(dir, ": directory is not empty (it has ", name,
                     "); stop its coordinator and move it away, or restore to another directory"));
  }
  if (error)
    return OfFile(absl::FailedPreconditionError(absl::StrCat(dir, ": cannot be read: ", error.message())));
  return absl::OkStatus();
}

absl::StatusOr<CopiedState> RestoreInto(const std::string& from, const std::string& dir, absl::Time now) {
  FSDPD_RETURN_IF_ERROR(MakeEmptyDirectory(dir));
  FSDPD_ASSIGN_OR_RETURN(const Database source, OpenSource(from));
  return CopyAndTidy(source.get(), from, StateFileIn(dir), [&](sqlite3* copy) -> absl::Status {
    FSDPD_RETURN_IF_ERROR(CheckDigest(copy, from));
    FSDPD_RETURN_IF_ERROR(RemoveDigest(copy, dir));
    return Execute(copy,
                   absl::StrCat("UPDATE counters SET value = MAX(value, ", GenerationByDate(now),
                                ") WHERE name = 'generation'"),
                   absl::StrCat("number ", dir));
  });
}

}  // namespace

absl::StatusOr<CopiedState> BackUp(const std::string& dir, const std::string& to) {
  FSDPD_ASSIGN_OR_RETURN(const Database source, OpenSource(StateFileIn(dir)));
  return CopyAndTidy(source.get(), StateFileIn(dir), to,
                     [&](sqlite3* copy) { return WriteDigest(copy, to); });
}

absl::StatusOr<CopiedState> WriteBackup(const StateContent& content, const std::string& to) {
  FSDPD_ASSIGN_OR_RETURN(const Database made,
                         OpenFile(kInMemory, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE));
  FSDPD_RETURN_IF_ERROR(PrepareSchema(made.get(), to));
  FSDPD_RETURN_IF_ERROR(PutContent(made.get(), content));
  return CopyAndTidy(made.get(), "the state", to, [&](sqlite3* copy) { return WriteDigest(copy, to); });
}

absl::StatusOr<StateContent> ReadBackup(const std::string& from) {
  FSDPD_ASSIGN_OR_RETURN(const Database source, OpenSource(from));
  FSDPD_RETURN_IF_ERROR(ReadSchemaVersion(source.get(), from).status());
  FSDPD_ASSIGN_OR_RETURN(const Database copy,
                         OpenFile(kInMemory, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE));
  FSDPD_RETURN_IF_ERROR(CopyPages(source.get(), copy.get(), absl::StrCat("read ", from)));
  FSDPD_RETURN_IF_ERROR(CheckState(copy.get(), from).status());
  FSDPD_RETURN_IF_ERROR(CheckDigest(copy.get(), from));
  FSDPD_RETURN_IF_ERROR(PrepareSchema(copy.get(), from));
  return ReadContent(copy.get());
}

absl::StatusOr<CopiedState> Restore(const std::string& from, const std::string& dir, absl::Time now) {
  const std::vector<fs::path> made = MissingDirectories(dir);
  absl::StatusOr<CopiedState> state = RestoreInto(from, dir, now);
  std::error_code ignored;
  for (const fs::path& each : made) {
    if (!state.ok()) fs::remove(each, ignored);
  }
  return state;
}

}  // namespace fsdpd
