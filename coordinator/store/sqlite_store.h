// StateStore in one SQLite file, DIR/fsdpd.db (WAL, synchronous=FULL: a commit is an fsync). A job is its
// serialized message plus the columns that queries need, so a new field of Job needs no migration. A file of
// an older schema is migrated when it is opened, in one transaction; older coordinators refuse it from then
// on.
//
// Open() holds DIR/LOCK for the lifetime of the store: a second coordinator on the same state gets
// FAILED_PRECONDITION. A newer schema is refused with FAILED_PRECONDITION, and a file that is damaged or not
// a database with DATA_LOSS. A refused file is not modified.
//
// If the file is removed, moved or replaced while it is open, writes return UNAVAILABLE until it is back.
//
// A full disk does not prevent a coordinator from starting: otherwise its agents would stop healthy ranks.
// For concurrent readers SQLite needs a file of 32 KiB (-shm) next to the database. If there is no space for
// it, the file is opened with an exclusive lock, which does not need it. Then reads succeed, writes return
// RESOURCE_EXHAUSTED, and the first write that succeeds stores the generation first. Until then the
// generation may equal that of an earlier run that stored nothing, and whose streams ended with its process.
// A new state needs disk space, and so does a migration.
//
// Thread-safe: SQLite serializes statements (FULLMUTEX). Writes are serialized by writer_lock.h, because a
// write with events is several statements in one transaction. FindRequest() takes a turn too, so that it
// reads only committed jobs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "coordinator/store/state_store.h"
#include "coordinator/store/writer_lock.h"

namespace fsdpd {

class Statement;

class SqliteStore : public StateStore {
 public:
  // Creates `dir` and the file if missing.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& dir,
                                                           size_t max_events = kMaxEvents);
  ~SqliteStore() override;

  int64_t generation() const override { return generation_; }
  const EventLog& events() const override { return log_; }
  absl::StatusOr<std::optional<v1::Job>> FindRequest(const std::string& request_id,
                                                     const v1::JobSpec& spec) override;
  absl::StatusOr<Inserted> Insert(const v1::Job& job) override;
  absl::Status Update(const v1::Job& job) override;
  std::vector<absl::Status> UpdateAll(const std::vector<const v1::Job*>& jobs) override;
  absl::Status Delete(const std::string& id, const Events& news = {}) override;
  absl::StatusOr<std::vector<std::string>> ForgetEnded(const Retention& retention, absl::Time now,
                                                       int limit) override;
  absl::StatusOr<v1::Job> Get(const std::string& id) override;
  absl::StatusOr<JobPage> List(const JobQuery& query) override;
  absl::StatusOr<std::vector<v1::Job>> LiveJobs() override;
  absl::Status SetCordon(const std::string& node, const v1::Cordon& cordon, const Events& news = {}) override;
  absl::Status RemoveCordon(const std::string& node, const Events& news = {}) override;
  absl::StatusOr<std::map<std::string, v1::Cordon>> Cordons() override;
  absl::Status UpdateNodes(const v1::ListNodesResponse& changed, const std::vector<std::string>& gone,
                           const Events& news = {}) override;
  absl::StatusOr<v1::ListNodesResponse> Nodes() override;

 private:
  struct Handle;
  SqliteStore(std::unique_ptr<Handle> handle, size_t max_events);
  absl::Status CheckFileInPlace() const;
  absl::Status StoreGeneration();
  absl::Status RollBackOpenTransaction(const std::string& doing);
  absl::Status LoadEvents();
  // Runs `write` and stores the new events of `jobs` and `news`, in one transaction.
  absl::Status Write(const std::vector<const v1::Job*>& jobs, const Events& news, const std::string& doing,
                     const std::function<absl::Status()>& write);
  absl::Status StoreEvents(const Events& events, bool replace = false);
  absl::Status ForgetEvents(int64_t through, const std::vector<int64_t>& gone);
  void ThinEvents();
  absl::StatusOr<v1::Job> ReadJob(const std::string& blob) const;
  absl::StatusOr<JobPage> ReadJobs(Statement* statement, const JobQuery& query,
                                   absl::string_view doing) const;

  std::unique_ptr<Handle> handle_;
  WriterLock writer_lock_;
  EventLog log_;
  int64_t generation_ = 0;
  // Two threads may store it concurrently, which is harmless: both write the same number.
  std::atomic<bool> generation_stored_{false};
};

}  // namespace fsdpd
