// StateStore in one SQLite file, DIR/fsdpd.db (WAL, synchronous=FULL: a commit is an fsync). A job is its
// serialized message plus the columns that queries need, so a new field of Job needs no migration. A file of
// an older schema is brought to the present one when it is opened, in one transaction: an older coordinator
// refuses it from then on.
//
// Open() takes DIR/LOCK for the store's life: a second coordinator on the same state is refused with
// FAILED_PRECONDITION. A file of a newer schema is refused with FAILED_PRECONDITION, one that is not a
// database or is damaged with DATA_LOSS; it is never changed then.
//
// A file that was removed, moved or replaced meanwhile is written to no more: UNAVAILABLE, until it is back.
//
// A full disk does not keep a coordinator from starting: its agents would stop healthy ranks, and nobody
// could cancel a job. SQLite needs a file of 32 KiB (-shm) beside a database that others may read meanwhile;
// where there is no room for it, the file is opened for this process alone until it ends, which needs none.
// Then everything can be read, a write is refused as the contract says, and the first for which there is room
// counts the generation first. Until one has, the generation may be that of an earlier life which could write
// nothing either: there is nothing of it that could be taken for this one's, as streams end with their
// process. A new state needs room, and so does one of an older schema, which is brought to this one.
//
// Thread-safe: SQLite serializes statements (FULLMUTEX), and writes take turns, since one that has events is
// several statements in one transaction. FindRequest() takes one too, so that it sees what is stored.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "coordinator/store/state_store.h"
#include "coordinator/store/turns.h"

namespace fsdpd {

class Statement;

class SqliteStore : public StateStore {
 public:
  // Creates `dir` and the file where missing.
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
  absl::Status CheckIsThere() const;
  absl::Status CountThisLife();
  absl::Status TakeBackWhatIsOpen(const std::string& doing);
  absl::Status LoadEvents();
  // `write`, and what of the events of `jobs` is new, and `news`: all of it or nothing.
  absl::Status Write(const std::vector<const v1::Job*>& jobs, const Events& news, const std::string& doing,
                     const std::function<absl::Status()>& write);
  absl::Status WriteNodes(const v1::ListNodesResponse& changed, const std::vector<std::string>& gone);
  absl::Status WriteInOne(const std::string& doing, const std::function<absl::Status()>& write);
  absl::Status StoreEvents(const Events& events, bool replace = false);
  absl::Status ForgetEvents(int64_t through, const std::vector<int64_t>& gone);
  void ThinEvents();
  absl::StatusOr<v1::Job> ReadJob(const std::string& blob) const;
  absl::StatusOr<JobPage> ReadJobs(Statement* statement, const JobQuery& query,
                                   absl::string_view doing) const;

  std::unique_ptr<Handle> handle_;
  Turns turns_;
  EventLog log_;
  int64_t generation_ = 0;
  std::atomic<bool> counted_{
      false};  // The generation is on disk. Two may count it at once: it is one number.
};

}  // namespace fsdpd
