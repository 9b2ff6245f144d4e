// StateStore in one SQLite file, DIR/fsdpd.db (WAL, synchronous=FULL: a commit is an fsync). A job is its
// serialized message plus the columns that queries need, so a new field of Job needs no migration.
//
// Open() takes DIR/LOCK for the store's life: a second coordinator on the same state is refused with
// FAILED_PRECONDITION. A file of a newer schema is refused with FAILED_PRECONDITION, one that is not a
// database or is damaged with DATA_LOSS; it is never changed then.
//
// Thread-safe without a lock of its own: every call is one statement, and SQLite serializes them (FULLMUTEX).
#pragma once

#include <memory>

#include "coordinator/state_store.h"

namespace fsdpd {

class SqliteStore : public StateStore {
 public:
  // Creates `dir` and the file where missing.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& dir);
  ~SqliteStore() override;

  int64_t generation() const override { return generation_; }
  absl::StatusOr<std::optional<v1::Job>> FindRequest(const std::string& request_id,
                                                     const v1::JobSpec& spec) override;
  absl::StatusOr<Inserted> Insert(const v1::Job& job) override;
  absl::Status Update(const v1::Job& job) override;
  absl::Status UpdateAll(const std::vector<const v1::Job*>& jobs) override;
  absl::StatusOr<v1::Job> Get(const std::string& id) override;
  absl::StatusOr<JobPage> List(const JobQuery& query) override;
  absl::StatusOr<std::vector<v1::Job>> LiveJobs() override;

 private:
  struct Handle;
  explicit SqliteStore(std::unique_ptr<Handle> handle);

  std::unique_ptr<Handle> handle_;
  int64_t generation_ = 0;
};

}  // namespace fsdpd
