#include "coordinator/store/state_digest.h"

#include <absl/strings/str_cat.h>

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "coordinator/store/sqlite_query.h"

namespace fsdpd {
namespace {

constexpr char kReadDigest[] = "PRAGMA application_id";  // A signed 32-bit number; 0: not set.

// FNV-1a. Each step is a bijection, so a single changed byte always changes the result.
class Digest {
 public:
  void Add(const std::string& bytes) {
    for (const char byte : bytes) value_ = (value_ ^ static_cast<uint8_t>(byte)) * 16777619u;
  }
  int32_t value() const { return value_ == 0 ? 1 : static_cast<int32_t>(value_); }

 private:
  uint32_t value_ = 2166136261u;
};

absl::Status AddRows(sqlite3* db, const std::string& sql, const std::string& doing, Digest* digest) {
  Statement rows(db, sql);
  return rows.Each(doing, [&] {
    for (int i = 0; i < rows.columns(); ++i) {
      const int type = rows.type(i);  // Before Blob() converts numbers to text.
      const std::string value = rows.Blob(i);
      digest->Add(absl::StrCat(type, ":", value.size(), ":"));
      digest->Add(value);
    }
  });
}

absl::StatusOr<int32_t> DigestOf(sqlite3* db, const std::string& path) {
  const std::string doing = absl::StrCat("read ", path);
  constexpr char kAll[] = " FROM sqlite_master ORDER BY type, name";
  Digest digest;
  FSDPD_RETURN_IF_ERROR(AddRows(db, "PRAGMA user_version", doing, &digest));
  FSDPD_RETURN_IF_ERROR(AddRows(db, absl::StrCat("SELECT type, name, sql", kAll), doing, &digest));
  std::vector<std::string> tables;
  Statement names(db, absl::StrCat("SELECT type, name", kAll));
  FSDPD_RETURN_IF_ERROR(names.Each(doing, [&] {
    if (names.Blob(0) == "table") tables.push_back(names.Blob(1));
  }));
  for (const std::string& table : tables)
    FSDPD_RETURN_IF_ERROR(
        AddRows(db, absl::StrCat("SELECT * FROM \"", table, "\" NOT INDEXED"), doing, &digest));
  return digest.value();
}

absl::Status SetDigest(sqlite3* db, int32_t digest, const std::string& path) {
  return Execute(db, absl::StrCat(kReadDigest, "=", digest), absl::StrCat("write the checksum of ", path));
}

}  // namespace

absl::Status WriteDigest(sqlite3* db, const std::string& path) {
  FSDPD_ASSIGN_OR_RETURN(const int32_t digest, DigestOf(db, path));
  return SetDigest(db, digest, path);
}

absl::Status CheckDigest(sqlite3* db, const std::string& path) {
  FSDPD_ASSIGN_OR_RETURN(const int64_t written, QueryInt(db, kReadDigest, absl::StrCat("read ", path)));
  if (written == 0) return absl::OkStatus();
  FSDPD_ASSIGN_OR_RETURN(const int32_t found, DigestOf(db, path));
  if (found == written) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": damaged: checksum mismatch"));
}

absl::Status RemoveDigest(sqlite3* db, const std::string& path) { return SetDigest(db, 0, path); }

}  // namespace fsdpd
