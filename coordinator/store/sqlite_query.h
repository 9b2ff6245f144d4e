// SQLite statements, and the mapping of SQLite errors to the status codes of state_store.h.
//
// As thread-safe as the connection; a Statement belongs to one thread.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <sqlite3.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "base/check.h"

namespace fsdpd {

// `doing`: the operation that failed, for the error message.
absl::Status StatusOf(sqlite3* db, int rc, absl::string_view doing);

// Creates a missing database file with permissions for this user only, because job specs contain environment
// variables. Opening the database reports errors. REQUIRES: the file is not open in this process, because
// closing any descriptor of a file drops the process's POSIX locks on it.
void MakePrivate(const std::string& path);

// Values that are bound as a blob, or as text but NULL if it is empty.
struct SqlBlob {
  std::string bytes;
};
struct SqlTextOrNull {
  std::string text;
};

// One prepared statement for one call, with values for its parameters.
class Statement {
 public:
  template <typename... Values>
  Statement(sqlite3* db, const std::string& sql, const Values&... values) : db_(db) {
    rc_ = sqlite3_prepare_v2(db, sql.c_str(), -1, &statement_, nullptr);
    (Bind(values), ...);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Binds the next parameter.
  void Bind(int64_t value) { Note(sqlite3_bind_int64(statement_, ++bound_, value)); }
  void Bind(const std::string& text) {
    Note(sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()),
                           SQLITE_TRANSIENT));
  }
  void Bind(const SqlBlob& blob) {
    Note(sqlite3_bind_blob64(statement_, ++bound_, blob.bytes.data(), blob.bytes.size(), SQLITE_TRANSIENT));
  }
  void Bind(const SqlTextOrNull& value) {
    value.text.empty() ? Note(sqlite3_bind_null(statement_, ++bound_)) : Bind(value.text);
  }
  // SQLITE_ROW, SQLITE_DONE or an error.
  int Step() { return rc_ == SQLITE_OK ? sqlite3_step(statement_) : rc_; }
  // Steps through all rows and calls `row` for each. `row` may return an absl::Status, which ends it.
  template <typename Row>
  absl::Status Each(absl::string_view doing, const Row& row) {
    int rc;
    while ((rc = Step()) == SQLITE_ROW) {
      if constexpr (std::is_void_v<decltype(row())>) {
        row();
      } else {
        FSDPD_RETURN_IF_ERROR(row());
      }
    }
    return rc == SQLITE_DONE ? absl::OkStatus() : StatusOf(db_, rc, doing);
  }
  absl::Status Run(absl::string_view doing) {
    return Each(doing, [] {});
  }

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

// Runs `sql` for `count` items, in statements of a few thousand. "$0" in it becomes `row`, once per item, and
// `bind` binds the parameters of an item. `each`: called for each row of a result.
absl::Status RunForAll(
    sqlite3* db, absl::string_view sql, absl::string_view row, size_t count, absl::string_view doing,
    absl::FunctionRef<void(Statement*, size_t)> bind,
    absl::FunctionRef<void(Statement*)> each = [](Statement*) {});
// Runs `write` in a transaction, which is rolled back if it fails.
absl::Status InTransaction(sqlite3* db, absl::string_view doing, absl::FunctionRef<absl::Status()> write);
// Runs statements without parameters.
absl::Status Execute(sqlite3* db, const std::string& sql, absl::string_view doing);
// DATA_LOSS if there is no row.
absl::StatusOr<int64_t> QueryInt(sqlite3* db, const std::string& sql, absl::string_view doing);

}  // namespace fsdpd
