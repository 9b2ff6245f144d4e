// SQLite statements, and the mapping of SQLite errors to the status codes of state_store.h.
//
// As thread-safe as the connection; a Statement belongs to one thread.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <sqlite3.h>

#include <cstdint>
#include <string>

namespace fsdpd {

// `doing`: the operation that failed, for the error message.
absl::Status StatusOf(sqlite3* db, int rc, absl::string_view doing);

// Creates a missing database file with permissions for this user only, because job specs contain environment
// variables. Files that SQLite creates next to it inherit them. Ignores errors: opening the database reports
// them. REQUIRES: the file is not open in this process, because closing any descriptor of a file drops the
// process's POSIX locks on it.
void MakePrivate(const std::string& path);

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
  int columns() const { return sqlite3_column_count(statement_); }
  int type(int column) { return sqlite3_column_type(statement_, column); }
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

absl::Status Execute(sqlite3* db, const std::string& sql, absl::string_view doing);
// DATA_LOSS if there is no row.
absl::StatusOr<int64_t> QueryInt(sqlite3* db, const std::string& sql, absl::string_view doing);

}  // namespace fsdpd
