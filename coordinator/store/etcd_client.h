// Client of an etcd cluster: failover between members, timeouts, and the mapping of errors.
//
// TLS files are reread at most once per second, when etcd is called. New files apply from the next call on.
// If new files are invalid, the previous ones stay in use (TlsInUse).
//
// A member that does not answer, or that has no quorum, is skipped for the next one. Reads are retried. A
// transaction is sent once, because it may have been applied even if its answer was lost (etcd_store.h).
//
// Errors have the member's address: UNAVAILABLE (no answer, no quorum, or etcd is overloaded),
// RESOURCE_EXHAUSTED (etcd's space or the size of a request: nothing was written), FAILED_PRECONDITION
// (permission denied), OUT_OF_RANGE (compacted revision). Thread-safe.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/net/tls_files.h"
#include "third_party/etcd/etcd.grpc.pb.h"

namespace fsdpd {

struct EtcdOptions {
  std::vector<std::string> members;            // "HOST:PORT"
  TlsFiles tls;                                // Plaintext if not given.
  absl::Duration attempt = absl::Seconds(2);   // Half to connect, half for the answer.
  absl::Duration patience = absl::Seconds(5);  // Total over all attempts of a read.
};

class EtcdClient {
 public:
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Make(const EtcdOptions& options, absl::Time now);
  ~EtcdClient();

  struct TlsInUse {
    std::string fault;  // Why the current files are invalid and older ones are in use. Empty: none.
    absl::Time not_after, trusted_not_after;
  };
  // nullopt in plaintext. Rereads the files.
  std::optional<TlsInUse> Tls();

  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request);
  // REQUIRES: the transaction only reads.
  absl::StatusOr<etcdserverpb::TxnResponse> ReadTxn(const etcdserverpb::TxnRequest& request);
  // One attempt. After UNAVAILABLE the transaction may have been applied, or may still be.
  absl::StatusOr<etcdserverpb::TxnResponse> TryTxn(const etcdserverpb::TxnRequest& request);

  absl::StatusOr<int64_t> GrantLease(absl::Duration ttl);
  // One attempt. NOT_FOUND if the lease has expired.
  absl::Status KeepAlive(int64_t lease);
  absl::Status Revoke(int64_t lease);  // One attempt.

 private:
  struct Member;
  using Members = std::vector<std::shared_ptr<Member>>;
  explicit EtcdClient(const EtcdOptions& options);
  void Use(const TlsIdentity& identity) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RereadTls(absl::Duration at_most_every);
  std::shared_ptr<Member> MemberAt(size_t asked);
  template <typename Answer, typename Call>
  absl::StatusOr<Answer> Try(const Call& call);
  template <typename Answer, typename Call>
  absl::StatusOr<Answer> Ask(const Call& call);

  const EtcdOptions options_;
  // Held from reading the files until they are applied: a slow reader cannot reinstate older files.
  Mutex reread_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  Mutex mutex_;
  Members members_ ABSL_GUARDED_BY(mutex_);
  TlsIdentity used_ ABSL_GUARDED_BY(mutex_);
  absl::Time tls_read_ ABSL_GUARDED_BY(mutex_);
  std::string tls_error_ ABSL_GUARDED_BY(mutex_);  // As logged; "" while the files are valid.
  std::string tls_warning_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> next_{0};  // Index of the current member, modulo their number.
};

}  // namespace fsdpd
