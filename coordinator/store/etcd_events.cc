#include "coordinator/store/etcd_events.h"

#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

// After this many events all are reread: events by themselves do not show which jobs were deleted.
constexpr size_t kReadAnewAfter = 2 * kMaxEvents;

}  // namespace

absl::Status EtcdEvents::AddTo(const std::vector<v1::Job*>& jobs) {
  const WriterLock::Hold hold(&writer_lock_);
  FSDPD_RETURN_IF_ERROR(ReadNew());
  for (v1::Job* job : jobs) {
    log_->AddTo(job);
    auto* events = job->mutable_events();
    while (!events->empty() && events->rbegin()->number() > job->event_count()) events->RemoveLast();
  }
  return absl::OkStatus();
}

absl::Status EtcdEvents::Look(absl::FunctionRef<void(const EventLog& log)> look) {
  const WriterLock::Hold hold(&writer_lock_);
  FSDPD_RETURN_IF_ERROR(ReadNew());
  look(*log_);
  return absl::OkStatus();
}

absl::Status EtcdEvents::ReadNew() {
  if (read_ > kReadAnewAfter) {
    log_ = std::make_unique<EventLog>();
    read_ = 0;
  }
  FSDPD_ASSIGN_OR_RETURN(Events events, jobs_->EventsAfter(log_->newest()));
  if (events.empty()) return absl::OkStatus();
  read_ += events.size();
  if (log_->newest() == 0) {  // Drops what the leader has dropped.
    log_->Load(std::move(events), /*first=*/0);
    log_->Forget(log_->Thin(SIZE_MAX));
    return absl::OkStatus();
  }
  const int64_t through = log_->ForgetThrough(events, absl::FromUnixNanos(events.back().unix_nanos()));
  log_->Append(std::move(events), through);
  log_->Forget(log_->Thin(SIZE_MAX));
  return absl::OkStatus();
}

}  // namespace fsdpd
