// The way to the coordinator: one channel, and another in its place when the files of the agent's TLS have
// been replaced. A channel that is in use stays as it is; who opens the next stream asks for the current one.
//
// A set of files that cannot work is said in the log, once, and the channel before it stays.
//
// One thread.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/channel.h>

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/tls_files.h"

namespace fsdpd {

class CoordinatorChannel {
 public:
  // `tls` not given: plaintext.
  CoordinatorChannel(std::string address, TlsFiles tls, Clock* clock)
      : address_(std::move(address)), tls_(std::move(tls)), clock_(clock) {}

  // An error, that of the files, only while there never was a channel.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Current();

  // To this one the name was unknown: Current() is to make another, which asks for it at once. It would ask
  // again after up to two minutes, and gRPC takes no other bound.
  void Renew() { channel_ = nullptr; }

 private:
  const std::string address_;
  const TlsFiles tls_;
  Clock* const clock_;
  std::shared_ptr<grpc::Channel> channel_;
  std::optional<TlsIdentity> used_;
  std::string last_fault_;
};

}  // namespace fsdpd
