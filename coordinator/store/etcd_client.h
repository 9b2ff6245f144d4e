// Calls to etcd: which of its members is asked, for how long, and what its errors mean.
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
#include <string>
#include <vector>

#include "base/tls_files.h"
#include "third_party/etcd/etcd.grpc.pb.h"

namespace fsdpd {

struct EtcdOptions {
  std::vector<std::string> members;            // "HOST:PORT"
  TlsFiles tls;                                // Not given: plaintext. Read once.
  absl::Duration attempt = absl::Seconds(2);   // Half of it to connect, half for the answer.
  absl::Duration patience = absl::Seconds(5);  // Over all attempts of what is read.
};

class EtcdClient {
 public:
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Make(const EtcdOptions& options, absl::Time now);
  ~EtcdClient();

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
  explicit EtcdClient(const EtcdOptions& options);
  template <typename Answer, typename Call>
  absl::StatusOr<Answer> Try(const Call& call);
  template <typename Answer, typename Call>
  absl::StatusOr<Answer> Ask(const Call& call);

  const absl::Duration attempt_, patience_;
  std::vector<std::unique_ptr<Member>> members_;
  std::atomic<size_t> next_{0};  // The one that is asked.
};

}  // namespace fsdpd
