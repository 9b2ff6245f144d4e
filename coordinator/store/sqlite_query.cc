#include "coordinator/store/sqlite_query.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/substitute.h>
#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <optional>

#include "base/unique_fd.h"

namespace fsdpd {
namespace {

constexpr size_t kItemsPerStatement = 4096;  // SQLite allows 32,766 bound values, and an item has up to four.

// An exceeded quota, an exceeded file size limit and an -shm file that cannot grow count as a full disk too.
bool IsFull(sqlite3* db, int rc) {
  if ((rc & 0xff) == SQLITE_FULL || rc == SQLITE_IOERR_SHMSIZE) return true;
  const int error = sqlite3_system_errno(db);
  const bool of_a_file = (rc & 0xff) == SQLITE_IOERR || (rc & 0xff) == SQLITE_CANTOPEN;
  return of_a_file && (error == ENOSPC || error == EDQUOT || error == EFBIG);
}

}  // namespace

void MakePrivate(const std::string& path) {
  UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
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
      return absl::DataLossError(absl::StrCat(
          message, absl::StrContains(doing, path) ? "" : absl::StrCat(" (", path, ")"),
          "; restore an intact backup into an empty state directory: ", "fsdpd-coordinator restore"));
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

absl::Status Execute(sqlite3* db, const std::string& sql, absl::string_view doing) {
  const int rc = sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr);
  return rc == SQLITE_OK ? absl::OkStatus() : StatusOf(db, sqlite3_extended_errcode(db), doing);
}

absl::Status RunForAll(sqlite3* db, absl::string_view sql, absl::string_view row, size_t count,
                       absl::string_view doing, absl::FunctionRef<void(Statement*, size_t)> bind,
                       absl::FunctionRef<void(Statement*)> each) {
  for (size_t begin = 0; begin < count; begin += kItemsPerStatement) {
    const size_t end = std::min(count, begin + kItemsPerStatement);
    std::string rows(row);
    for (size_t i = begin + 1; i < end; ++i) absl::StrAppend(&rows, ",", row);
    Statement statement(db, absl::Substitute(sql, rows));
    for (size_t i = begin; i < end; ++i) bind(&statement, i);
    FSDPD_RETURN_IF_ERROR(statement.Each(doing, [&] { each(&statement); }));
  }
  return absl::OkStatus();
}

absl::Status InTransaction(sqlite3* db, absl::string_view doing, absl::FunctionRef<absl::Status()> write) {
  FSDPD_RETURN_IF_ERROR(Execute(db, "BEGIN IMMEDIATE", doing));
  absl::Status done = write();
  if (done.ok()) done = Execute(db, "COMMIT", doing);
  // After some errors SQLite has rolled back already.
  if (!done.ok()) Execute(db, "ROLLBACK", doing).IgnoreError();
  return done;
}

absl::StatusOr<int64_t> QueryInt(sqlite3* db, const std::string& sql, absl::string_view doing) {
  std::optional<int64_t> value;
  Statement statement(db, sql);
  FSDPD_RETURN_IF_ERROR(statement.Each(doing, [&] { value = statement.Int(0); }));
  if (!value.has_value()) return absl::DataLossError(absl::StrCat(doing, ": no row"));
  return *value;
}

}  // namespace fsdpd
