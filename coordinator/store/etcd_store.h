// StateStore in etcd, of the coordinator that leads (leadership.h). How things lie there is etcd_jobs.h's.
//
// Every write is one transaction that etcd makes only while this leadership's key is there and nothing was
// written since this store's last one. So whoever was the leader, and does not know yet that he is it no
// more, changes nothing; and a write whose answer was lost is sent again until it is known to have been made
// once, or the leadership is over, after which nobody here asks any more: the next leader reads what there
// is. What etcd refuses (its space, the size of a request) was not written.
//
// The index of entries is in memory: nobody else changes what it is of. A job may have kMaxJobBytes when it
// is inserted, and is OUT_OF_RANGE with more: etcd limits a request to 1.5 MiB by default, and the 512 KiB
// between are headroom for the job's history. A record that has grown beyond etcd's limit is stored as a
// smaller one (small_record.h). A record that etcd refused is sent again once it is smaller, or after
// kTooLargePause; OUT_OF_RANGE if etcd refuses the smallest one.
//
// Thread-safe: writes take turns, and no lock is held while etcd is asked.
#pragma once

#include <memory>

#include "base/mutex.h"
#include "coordinator/store/etcd_jobs.h"
#include "coordinator/store/leadership.h"
#include "coordinator/store/state_store.h"
#include "coordinator/store/turns.h"

namespace fsdpd {

class EtcdStore : public StateStore {
 public:
  static constexpr size_t kMaxJobBytes = size_t{1} << 20;
  static constexpr absl::Duration kTooLargePause = absl::Minutes(10);

  // Both outlive it. FAILED_PRECONDITION for a newer schema.
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
  class Batch;  // Of a transaction.

  EtcdStore(EtcdClient* etcd, const std::string& prefix, Leadership* leadership, size_t max_events);
  absl::Status Prepare();
  // REQUIRES: the turn.
  absl::Status Write(Batch* batch, const std::string& doing);
  absl::Status WriteAndAdopt(Batch* batch, const std::string& doing);
  // Tries smaller records of a job that etcd refuses.
  absl::Status UpdateOne(const v1::Job& job);
  absl::Status UpdateRecord(const v1::Job& job);
  // Why the job need not be sent to etcd, which refused it before.
  absl::Status WhyNotSent(const v1::Job& job) const;
  void NoteSent(const v1::Job& job, const absl::Status& written);
  void ThinEvents();
  void AddEvents(const std::vector<const v1::Job*>& jobs, const Events& news, Batch* batch) const;

  EtcdClient* const etcd_;
  EtcdJobs jobs_;
  Leadership* const leadership_;

  Turns turns_;
  EventLog log_;
  Mutex mutex_;
  EtcdIndex index_ ABSL_GUARDED_BY(mutex_);
  // Of who has the turn.
  struct TooLarge {
    size_t bytes;
    absl::Time until;
    absl::Status why;
  };
  std::map<std::string, TooLarge> too_large_;  // Jobs that etcd refused, by id.
  int64_t writes_ = 0;
  int64_t last_write_ = 0;  // The revision of "written", which each write puts.
};

}  // namespace fsdpd
