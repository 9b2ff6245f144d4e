// Calls to etcd: which of its members is asked, for how long, and what its errors mean.
//
// TLS files are read again each second that etcd is called; a set that was replaced is used from the next
// call on, and one that cannot work leaves the one before in use (TlsInUse).
//
// A member that does not answer, or that has no quorum, is left for the next one of the list. What is only
// read is asked again until it is known; a transaction is sent once, since one whose answer was lost may have
// been made: who writes has to find out (etcd_store.h).
//
// Errors: UNAVAILABLE (nobody answered, or nobody of a quorum, or etcd has too much to do),
// RESOURCE_EXHAUSTED (etcd's space or the size of a request: nothing was written), FAILED_PRECONDITION (etcd
// does not let us), OUT_OF_RANGE (a revision that it has no more), with the member's address. Thread-safe.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/tls_files.h"
#include "third_party/etcd/etcd.grpc.pb.h"

namespace fsdpd {

struct EtcdOptions {
  std::vector<std::string> members;            // "HOST:PORT"
  TlsFiles tls;                                // Not given: plaintext.
  absl::Duration attempt = absl::Seconds(2);   // Half of it to connect, half for the answer.
  absl::Duration patience = absl::Seconds(5);  // Over all attempts of what is read.
};

class EtcdClient {
 public:
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Make(const EtcdOptions& options, absl::Time now);
  ~EtcdClient();

  struct TlsInUse {
    std::string fault;  // Why the files cannot be used, so that an older set is. Empty: they are.
    absl::Time not_after, trusted_not_after;
  };
  // Nothing in plaintext. Reads the files.
  std::optional<TlsInUse> Tls();

  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request);
  // REQUIRES: nothing is written by it.
  absl::StatusOr<etcdserverpb::TxnResponse> ReadTxn(const etcdserverpb::TxnRequest& request);
  // One attempt. UNAVAILABLE says nothing about whether it was made, or will be.
  absl::StatusOr<etcdserverpb::TxnResponse> TryTxn(const etcdserverpb::TxnRequest& request);

  absl::StatusOr<int64_t> GrantLease(absl::Duration ttl);
  // One attempt. NOT_FOUND where the lease is no more.
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
  // Held from the read of the files until they are in use: a slow reader puts no older set back.
  Mutex reread_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  Mutex mutex_;
  Members members_ ABSL_GUARDED_BY(mutex_);
  TlsIdentity used_ ABSL_GUARDED_BY(mutex_);
  absl::Time tls_read_ ABSL_GUARDED_BY(mutex_);
  std::string tls_fault_ ABSL_GUARDED_BY(mutex_);  // As the log has it; "" while the files can be used.
  std::atomic<size_t> next_{0};                    // The one that is asked.
};

}  // namespace fsdpd
