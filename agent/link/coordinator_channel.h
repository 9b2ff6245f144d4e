// The gRPC channel to one coordinator. It is replaced by a new channel when the TLS files of the agent
// change; streams that are open keep the old one. Call Current() before each new stream.
//
// Invalid TLS files are logged once and the previous channel remains in use.
//
// Not thread-safe; one thread owns it.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/channel.h>

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/net/tls_files.h"

namespace fsdpd {

class CoordinatorChannel {
 public:
  // `tls` not given: plaintext.
  CoordinatorChannel(std::string address, TlsFiles tls, Clock* clock)
      : address_(std::move(address)), tls_(std::move(tls)), clock_(clock) {}

  // Fails only if the TLS files are invalid and no channel was ever created.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Current();

  // Call after a DNS failure: makes Current() create a new channel, which resolves the name immediately. The
  // old channel would wait for up to two minutes, and gRPC has no setting for this.
  void Renew() { channel_ = nullptr; }

 private:
  const std::string address_;
  const TlsFiles tls_;
  Clock* const clock_;
  std::shared_ptr<grpc::Channel> channel_;
  std::optional<TlsIdentity> used_;
  std::string last_error_;
  std::string last_warning_;
};

}  // namespace fsdpd
