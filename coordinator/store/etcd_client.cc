#include "coordinator/store/etcd_client.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <grpcpp/grpcpp.h>

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/net/connect_error.h"

namespace fsdpd {
namespace {

namespace etcd = etcdserverpb;

constexpr absl::Duration kRereadTls = absl::Seconds(1);
constexpr absl::Duration kPause = absl::Milliseconds(50);  // Between two attempts, at different members.

absl::Status TooLarge(const std::string& words) {
  return absl::OutOfRangeError(absl::StrCat(words, " (see etcd's --max-request-bytes)"));
}

// gRPC's message does not name the certificate. `fault`: why the TLS files cannot be used; may be empty.
std::string TlsHint(const std::string& message, const std::string& fault, bool has_certificate) {
  if (!fault.empty()) return absl::StrCat("; TLS files for etcd cannot be used: ", fault);
  switch (ConnectErrorOf(message)) {
    case ConnectError::kUntrustedCertificate:
      return "; etcd's certificate may have expired, or may not be signed by a CA in --etcd-ca";
    case ConnectError::kClosedOnConnect:
    case ConnectError::kAlertOnConnect:
      return has_certificate
                 ? "; --etcd-cert may have expired, or may not be signed by a CA in etcd's --trusted-ca-file"
                 : "; etcd may require a client certificate: set --etcd-cert";
    case ConnectError::kClosed:  // For example, etcd stops.
    case ConnectError::kOther:
      break;
  }
  return "";
}

absl::Status StatusOf(const grpc::Status& status, const std::string& member) {
  if (status.ok()) return absl::OkStatus();
  const std::string words = absl::StrCat("etcd at ", member, ": ", status.error_message());
  switch (status.error_code()) {
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      if (absl::StrContains(words, "too many requests")) return absl::UnavailableError(words);
      if (absl::StrContains(words, "database space exceeded"))
        return absl::ResourceExhaustedError(absl::StrCat(
            "etcd: storage quota exceeded, writes are rejected; compact, defragment and disarm the alarm "
            "(docs/deploy.md, \"An etcd that is full\"): ",
            words));
      // gRPC's own size limit is above etcd's.
      if (absl::StrContains(words, "larger than max")) return TooLarge(words);
      return absl::ResourceExhaustedError(words);
    case grpc::StatusCode::INVALID_ARGUMENT:
      if (absl::StrContains(words, "too large")) return TooLarge(words);
      return absl::InternalError(words);
    case grpc::StatusCode::NOT_FOUND:
      return absl::NotFoundError(words);
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::FAILED_PRECONDITION:
      return absl::FailedPreconditionError(words);
    case grpc::StatusCode::OUT_OF_RANGE:
      return absl::OutOfRangeError(words);
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::FailedPreconditionError(absl::StrCat(words, " (not an etcd server, or older than 3.4)"));
    default:  // DEADLINE_EXCEEDED, UNAVAILABLE, and errors of a member that is shutting down.
      return absl::UnavailableError(words);
  }
}

std::shared_ptr<grpc::Channel> Connect(const std::string& address,
                                       const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // Unlimited: pages of entries or jobs are bounded by the requests.
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace

struct EtcdClient::Member {
  Member(std::string where, const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : address(std::move(where)),
        channel(Connect(address, credentials)),
        kv(etcd::KV::NewStub(channel)),
        lease(etcd::Lease::NewStub(channel)) {}
  const std::string address;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<etcd::KV::Stub> kv;
  const std::unique_ptr<etcd::Lease::Stub> lease;
};

EtcdClient::EtcdClient(const EtcdOptions& options) : options_(options) {}
EtcdClient::~EtcdClient() = default;

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Make(const EtcdOptions& options, absl::Time now) {
  if (options.members.empty())
    return absl::InvalidArgumentError("etcd: no members given (want at least one HOST:PORT)");
  TlsIdentity identity;
  if (options.tls.given()) {
    FSDPD_ASSIGN_OR_RETURN(identity, ReadTlsFiles(options.tls, now));
  }
  std::unique_ptr<EtcdClient> client(new EtcdClient(options));
  MutexLock lock(&client->mutex_);
  client->tls_read_ = absl::Now();
  client->Use(identity);
  return client;
}

// Calls in flight finish on the previous channels.
void EtcdClient::Use(const TlsIdentity& identity) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (options_.tls.given()) {
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = identity.trusted;
    ssl.pem_private_key = identity.key;
    ssl.pem_cert_chain = identity.certificate;
    credentials = grpc::SslCredentials(ssl);
    LogInfo("TLS for etcd loaded certificate=%s expires=%s", options_.tls.certificate,
            absl::FormatTime(identity.not_after, absl::UTCTimeZone()));
  }
  used_ = identity;
  members_.clear();
  for (const std::string& address : options_.members)
    members_.push_back(std::make_shared<Member>(address, credentials));
}

void EtcdClient::RereadTls(absl::Duration at_most_every) {
  if (!options_.tls.given()) return;
  {
    MutexLock lock(&mutex_);
    if (absl::Now() - tls_read_ < at_most_every) return;
    tls_read_ = absl::Now();
  }
  MutexLock reread(&reread_mutex_);
  const absl::StatusOr<TlsIdentity> read = ReadTlsFiles(options_.tls, absl::Now());
  MutexLock lock(&mutex_);
  const std::string fault(read.status().message());
  if (std::exchange(tls_error_, fault) != fault && !fault.empty())
    LogError("rejected TLS files for etcd; the previous ones stay in use error=%s", fault);
  if (!read.ok()) return;
  LogTlsWarning(*read, &tls_warning_);
  if (!used_.SameAs(*read)) Use(*read);
}

std::optional<EtcdClient::TlsInUse> EtcdClient::Tls() {
  if (!options_.tls.given()) return std::nullopt;
  RereadTls(absl::ZeroDuration());
  MutexLock lock(&mutex_);
  return TlsInUse{tls_error_, used_.not_after, used_.trusted_not_after};
}

std::shared_ptr<EtcdClient::Member> EtcdClient::MemberAt(size_t asked) {
  RereadTls(kRereadTls);
  MutexLock lock(&mutex_);
  return members_[asked % members_.size()];
}

template <typename Answer, typename Call>
absl::StatusOr<Answer> EtcdClient::Try(const Call& call) {
  const size_t asked = next_.load();
  const std::shared_ptr<Member> pinned = MemberAt(asked);
  Member& member = *pinned;
  // A call on a channel in reconnect backoff fails immediately, and nothing would wait for the next
  // connection attempt. If this one fails too, the call returns the reason.
  member.channel->WaitForConnected(absl::ToChronoTime(absl::Now() + options_.attempt / 2));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + options_.attempt / 2));
  Answer answer;
  absl::Status status = StatusOf(call(member, &context, &answer), member.address);
  if (status.ok()) return answer;
  if (absl::IsUnavailable(status) && options_.tls.given()) {
    MutexLock lock(&mutex_);
    const std::string message(status.message());
    status = absl::UnavailableError(
        absl::StrCat(message, TlsHint(message, tls_error_, !options_.tls.certificate.empty())));
  }
  size_t expected = asked;  // Concurrent failures advance by one member only.
  if (absl::IsUnavailable(status)) next_.compare_exchange_strong(expected, asked + 1);
  return status;
}

template <typename Answer, typename Call>
absl::StatusOr<Answer> EtcdClient::Ask(const Call& call) {
  const absl::Time until = absl::Now() + options_.patience;
  while (true) {
    absl::StatusOr<Answer> answer = Try<Answer>(call);
    if (answer.ok() || !absl::IsUnavailable(answer.status()) || absl::Now() + kPause >= until) return answer;
    absl::SleepFor(kPause);
  }
}

absl::StatusOr<etcd::RangeResponse> EtcdClient::Range(const etcd::RangeRequest& request) {
  return Ask<etcd::RangeResponse>([&](Member& member, grpc::ClientContext* context, auto* answer) {
    return member.kv->Range(context, request, answer);
  });
}

absl::StatusOr<etcd::TxnResponse> EtcdClient::ReadTxn(const etcd::TxnRequest& request) {
  return Ask<etcd::TxnResponse>([&](Member& member, grpc::ClientContext* context, auto* answer) {
    return member.kv->Txn(context, request, answer);
  });
}

absl::StatusOr<etcd::TxnResponse> EtcdClient::TryTxn(const etcd::TxnRequest& request) {
  return Try<etcd::TxnResponse>([&](Member& member, grpc::ClientContext* context, auto* answer) {
    return member.kv->Txn(context, request, answer);
  });
}

// A lease whose grant was answered but lost expires by itself.
absl::StatusOr<int64_t> EtcdClient::GrantLease(absl::Duration ttl) {
  etcd::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(ttl));
  FSDPD_ASSIGN_OR_RETURN(
      const etcd::LeaseGrantResponse granted,
      Ask<etcd::LeaseGrantResponse>([&](Member& member, grpc::ClientContext* context, auto* answer) {
        return member.lease->LeaseGrant(context, request, answer);
      }));
  if (!granted.error().empty())
    return absl::InternalError(absl::StrCat("etcd: lease not granted: ", granted.error()));
  return granted.id();
}

absl::Status EtcdClient::KeepAlive(int64_t lease) {
  FSDPD_ASSIGN_OR_RETURN(
      const etcd::LeaseKeepAliveResponse renewed,
      Try<etcd::LeaseKeepAliveResponse>([&](Member& member, grpc::ClientContext* context, auto* answer) {
        etcd::LeaseKeepAliveRequest request;
        request.set_id(lease);
        const auto stream = member.lease->LeaseKeepAlive(context);
        const bool answered = stream->Write(request) && stream->Read(answer);
        if (answered) context->TryCancel();  // One stream per renewal, because the member may change.
        const grpc::Status ended = stream->Finish();
        if (answered) return grpc::Status::OK;
        return ended.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "stream ended") : ended;
      }));
  return renewed.ttl() > 0 ? absl::OkStatus() : absl::NotFoundError("lease expired");
}

absl::Status EtcdClient::Revoke(int64_t lease) {
  etcd::LeaseRevokeRequest request;
  request.set_id(lease);
  return Try<etcd::LeaseRevokeResponse>([&](Member& member, grpc::ClientContext* context, auto* answer) {
           return member.lease->LeaseRevoke(context, request, answer);
         })
      .status();
}

}  // namespace fsdpd
