// Event log of a standby coordinator: an in-memory copy of the events that the leader stored in etcd. Each
// call first reads the events that were added since the last one, so only the first call reads all.
//
// Errors: those of etcd_jobs.h. Thread-safe: calls are serialized.
#pragma once

#include <absl/functional/function_ref.h>

#include <memory>
#include <vector>

#include "coordinator/store/etcd_jobs.h"
#include "coordinator/store/event_log.h"
#include "coordinator/store/writer_lock.h"

namespace fsdpd {

class EtcdEvents {
 public:
  explicit EtcdEvents(EtcdJobs* jobs) : jobs_(jobs), log_(std::make_unique<EventLog>()) {}

  // Adds to each job its events up to the job's stored version, as far as they are retained.
  absl::Status AddTo(const std::vector<v1::Job*>& jobs);
  // Calls `look` with a log of all events stored so far. Other calls wait until `look` returns.
  absl::Status Look(absl::FunctionRef<void(const EventLog& log)> look);

 private:
  absl::Status ReadNew();

  EtcdJobs* const jobs_;
  WriterLock writer_lock_;
  // Accessed only while holding a turn.
  std::unique_ptr<EventLog> log_;
  size_t read_ = 0;  // Events read into log_.
};

}  // namespace fsdpd
