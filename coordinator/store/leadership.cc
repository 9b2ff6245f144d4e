#include "coordinator/store/leadership.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {
namespace {

namespace etcd = etcdserverpb;

constexpr absl::Duration kRetry = absl::Milliseconds(100);
constexpr int kRenewalsPerLease = 4;

std::string KeyOf(const std::string& prefix) { return prefix + "leader"; }
std::string CounterOf(const std::string& prefix) { return prefix + "generation"; }

void AddPut(const std::string& key, const std::string& value, int64_t lease, etcd::RequestOp* op) {
  op->mutable_request_put()->set_key(key);
  op->mutable_request_put()->set_value(value);
  op->mutable_request_put()->set_lease(lease);
}

}  // namespace

absl::StatusOr<std::string> Leadership::Leader(EtcdClient* etcd, const std::string& prefix) {
  etcd::RangeRequest request;
  request.set_key(KeyOf(prefix));
  FSDPD_ASSIGN_OR_RETURN(const etcd::RangeResponse found, etcd->Range(request));
  return found.kvs().empty() ? "" : found.kvs(0).value();
}

Leadership::Leadership(EtcdClient* etcd, Options options, std::function<void()> lost)
    : etcd_(etcd), options_(std::move(options)), lost_(std::move(lost)) {}

absl::StatusOr<std::unique_ptr<Leadership>> Leadership::TryTake(EtcdClient* etcd, const Options& options,
                                                                std::function<void()> lost) {
  std::unique_ptr<Leadership> taken(new Leadership(etcd, options, std::move(lost)));
  const absl::Time asked = options.clock->Now();
  FSDPD_ASSIGN_OR_RETURN(taken->lease_, etcd->GrantLease(options.lease));
  etcd::TxnRequest request;
  // A create revision of 0 means that the key does not exist: only one candidate's transaction succeeds.
  etcd::Compare* no_leader = request.add_compare();
  no_leader->set_target(etcd::Compare::CREATE);
  no_leader->set_key(KeyOf(options.prefix));
  no_leader->set_create_revision(0);
  AddPut(KeyOf(options.prefix), options.address, taken->lease_, request.add_success());
  // If the answer is lost, the lease expires soon.
  FSDPD_ASSIGN_OR_RETURN(const etcd::TxnResponse answer, etcd->TryTxn(request));
  if (!answer.succeeded()) return std::unique_ptr<Leadership>();
  taken->create_revision_ = answer.header().revision();
  FSDPD_RETURN_IF_ERROR(taken->Count());
  {
    MutexLock lock(&taken->mutex_);
    taken->until_ = asked + options.lease;
  }
  Leadership* const self = taken.get();
  taken->thread_ = std::thread([self] { self->Renew(); });
  return taken;
}

Leadership::~Leadership() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
  }
  changed_.SignalAll();
  if (thread_.joinable()) thread_.join();
  if (lease_ == 0) return;
  if (const absl::Status revoked = etcd_->Revoke(lease_); !revoked.ok() && !absl::IsNotFound(revoked))
    LogWarning("lease not released, other coordinators wait until it expires error=%s", revoked.message());
}

// The date is needed if etcd was restored from an old snapshot (state_store.h).
absl::Status Leadership::Count() {
  etcd::RangeRequest read;
  read.set_key(CounterOf(options_.prefix));
  FSDPD_ASSIGN_OR_RETURN(const etcd::RangeResponse found, etcd_->Range(read));
  int64_t last = 0;
  if (!found.kvs().empty() && !absl::SimpleAtoi(found.kvs(0).value(), &last))
    return absl::DataLossError(absl::StrCat("etcd: key ", read.key(), " is not a number"));
  generation_ = std::max(last + 1, GenerationByDate(options_.clock->Wall()));
  etcd::TxnRequest request;
  *request.add_compare() = Fence();
  AddPut(read.key(), absl::StrCat(generation_), 0, request.add_success());
  FSDPD_ASSIGN_OR_RETURN(const etcd::TxnResponse counted, etcd_->TryTxn(request));
  return counted.succeeded() ? absl::OkStatus()
                             : absl::UnavailableError("leadership: the lease expired during the election");
}

etcd::Compare Leadership::Fence() const {
  etcd::Compare mine;
  mine.set_target(etcd::Compare::CREATE);
  mine.set_key(KeyOf(options_.prefix));
  mine.set_create_revision(create_revision_);
  return mine;
}

absl::Time Leadership::held_until() const {
  MutexLock lock(&mutex_);
  return until_;
}

void Leadership::Lose(const std::string& why) {
  {
    MutexLock lock(&mutex_);
    until_ = absl::InfinitePast();
    if (std::exchange(over_, true) || ending_) return;
  }
  LogError("lost leadership generation=%d reason=%s", generation_, why);
  changed_.SignalAll();
  lost_();
}

bool Leadership::Wait(absl::Duration duration) {
  const absl::Time until = options_.clock->Now() + duration;
  MutexLock lock(&mutex_);
  for (absl::Time now = options_.clock->Now(); !ending_ && !over_ && now < until;
       now = options_.clock->Now()) {
    changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(until - now));
  }
  return !ending_ && !over_;
}

// Never after the deadline: other threads may have seen held() == false and stopped.
bool Leadership::Extend(absl::Time asked) {
  MutexLock lock(&mutex_);
  if (over_ || options_.clock->Now() >= until_) return false;
  until_ = asked + options_.lease;
  return true;
}

void Leadership::Renew() {
  std::string last_error;
  while (Wait(last_error.empty() ? options_.lease / kRenewalsPerLease : kRetry)) {
    const absl::Time asked = options_.clock->Now();
    const absl::Status renewed = asked < held_until() ? etcd_->KeepAlive(lease_)
                                                      : absl::UnavailableError("this process was suspended");
    if (absl::IsNotFound(renewed)) return Lose("lease expired");
    if (renewed.ok() && Extend(asked)) {
      last_error.clear();
      continue;
    }
    if (!held()) return Lose(absl::StrCat("lease not renewed in time: ", renewed.message()));
    if (last_error.empty()) LogWarning("lease renewal failed, retrying error=%s", renewed.message());
    last_error = std::string(renewed.message());
  }
}

}  // namespace fsdpd
