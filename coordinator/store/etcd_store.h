// StateStore in etcd, for the coordinator that leads (leadership.h). etcd_jobs.h defines the keys.
//
// Every write is one transaction. etcd applies it only if this leadership's key exists and if the state was
// not written since this store's last write. Hence a former leader that has not noticed its loss cannot
// change anything. A write whose answer was lost is resent until it is known to have been applied once, or
// until the leadership is lost. What etcd refuses (space, size of a request) was not written.
//
// The index of entries is in memory, because only the leader writes. A job may have kMaxJobBytes when it is
// inserted; with more, Insert() returns OUT_OF_RANGE. etcd limits a request to 1.5 MiB by default, and the
// remaining 512 KiB are headroom for the job's history. A record that has grown beyond etcd's limit is stored
// as a smaller one (small_record.h). A record that etcd refused is resent once it is smaller, or after
// kTooLargePause; OUT_OF_RANGE if etcd refuses the smallest one.
//
// Thread-safe: writes are serialized (writer_lock.h), and no lock is held during a call to etcd.
#pragma once

#include <memory>

#include "base/mutex.h"
#include "coordinator/store/etcd_jobs.h"
#include "coordinator/store/leadership.h"
#include "coordinator/store/state_store.h"
#include "coordinator/store/writer_lock.h"

namespace fsdpd {

class EtcdStore : public StateStore {
 public:
  static constexpr size_t kMaxJobBytes = size_t{1} << 20;
  static constexpr absl::Duration kTooLargePause = absl::Minutes(10);

  // `etcd` and `leadership` outlive the store. FAILED_PRECONDITION for a newer schema.
  static absl::StatusOr<std::unique_ptr<EtcdStore>> Open(EtcdClient* etcd, const std::string& prefix,
                                                         Leadership* leadership,
                                                         size_t max_events = kMaxEvents);

  int64_t generation() const override { return leadership_->generation(); }
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
  class Batch;  // Operations of one transaction.

  EtcdStore(EtcdClient* etcd, const std::string& prefix, Leadership* leadership, size_t max_events);
  absl::Status Prepare();
  // REQUIRES: the caller holds the turn.
  absl::Status Write(Batch* batch, const std::string& doing);
  absl::Status WriteAndAdopt(Batch* batch, const std::string& doing);
  // Retries with smaller records if etcd refuses the job's size.
  absl::Status UpdateOne(const v1::Job& job);
  absl::Status UpdateRecord(const v1::Job& job);
  // The earlier refusal if the job need not be sent to etcd again, otherwise OK.
  absl::Status EarlierRefusal(const v1::Job& job) const;
  void RecordRefusal(const v1::Job& job, const absl::Status& written);
  void ThinEvents();
  void AddEvents(const std::vector<const v1::Job*>& jobs, const Events& news, Batch* batch) const;

  EtcdClient* const etcd_;
  EtcdJobs jobs_;
  Leadership* const leadership_;

  WriterLock writer_lock_;
  EventLog log_;
  Mutex mutex_;
  EtcdIndex index_ ABSL_GUARDED_BY(mutex_);
  // Guarded by writer_lock_.
  struct TooLarge {
    size_t bytes;
    absl::Time until;
    absl::Status why;
  };
  std::map<std::string, TooLarge> too_large_;  // By the id of the job that etcd refused.
  int64_t writes_ = 0;
  int64_t last_write_ = 0;  // Revision of the key "written", which every write sets.
};

}  // namespace fsdpd
