#include "agent/link/coordinator_channel.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "base/limits.h"
#include "base/log.h"

namespace fsdpd {
namespace {

constexpr int kKeepaliveMs = 3000;  // A dead coordinator or network is detected within two intervals.
// When thousands of agents reconnect simultaneously, the last handshakes take seconds; a shorter timeout
// would only restart them.
constexpr int kConnectMs = 5000;
constexpr int kMaxMetadataBytes = 64 << 10;  // Allows for the details of an error status.

std::shared_ptr<grpc::Channel> Connect(const std::string& address,
                                       const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxRpcBytes);
  arguments.SetMaxSendMessageSize(kMaxRpcBytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The channel has its own jittered backoff between connection attempts; CoordinatorLink has one between
  // streams.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const TlsIdentity& identity) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = identity.trusted;
  options.pem_private_key = identity.key;
  options.pem_cert_chain = identity.certificate;
  return grpc::SslCredentials(options);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> CoordinatorChannel::Current() {
  if (!tls_.given()) {
    if (channel_ == nullptr) channel_ = Connect(address_, grpc::InsecureChannelCredentials());
    return channel_;
  }
  absl::StatusOr<TlsIdentity> read = ReadTlsFiles(tls_, clock_->Wall());
  if (!read.ok()) {
    if (!used_.has_value()) return read.status();
    std::string fault(read.status().message());
    if (std::exchange(last_error_, fault) != fault) {
      LogError("rejected TLS files; the previous ones stay in use error=%s", fault);
    }
  } else {
    last_error_.clear();
    LogTlsWarning(*read, &last_warning_);
    if (!used_.has_value() || !used_->SameAs(*read)) {
      LogInfo("TLS certificate=%s expires=%s", tls_.certificate,
              absl::FormatTime(read->not_after, absl::UTCTimeZone()));
      used_ = *std::move(read);
      channel_ = nullptr;
    }
  }
  if (channel_ == nullptr) channel_ = Connect(address_, CredentialsOf(*used_));
  return channel_;
}

}  // namespace fsdpd
