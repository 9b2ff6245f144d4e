// The events of jobs and nodes, for a coordinator that stands by: what whoever leads has stored of them, in
// memory. What is new is read when somebody asks, so that an answer costs one small read of etcd, and the
// first one all.
//
// Errors: those of etcd_jobs.h. Thread-safe; who asks takes turns.
#pragma once

#include <absl/functional/function_ref.h>

#include <memory>
#include <vector>

#include "coordinator/store/etcd_jobs.h"
#include "coordinator/store/event_log.h"
#include "coordinator/store/turns.h"

namespace fsdpd {

class EtcdEvents {
 public:
  explicit EtcdEvents(EtcdJobs* jobs) : jobs_(jobs), log_(std::make_unique<EventLog>()) {}

  // Into jobs as they were stored: those of each until then, as far as they are kept.
  absl::Status AddTo(const std::vector<v1::Job*>& jobs);
  // All that are stored by now, for as long as `look` takes: others wait.
  absl::Status Look(absl::FunctionRef<void(const EventLog& log)> look);

 private:
  absl::Status ReadNew();

  EtcdJobs* const jobs_;
  Turns turns_;
  // In one's turn alone.
  std::unique_ptr<EventLog> log_;
  size_t read_ = 0;  // Into the log.
};

}  // namespace fsdpd
