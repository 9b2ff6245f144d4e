// The coordinator's certificate as OpenSSL takes it, for who listens beside gRPC. Nobody is asked for a
// certificate there: people have tokens.
//
// Thread-safe. Errors of the files are told by TlsPort.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "base/tls_files.h"
#include "coordinator/tls_port.h"

namespace fsdpd {

class ServerTls {
 public:
  explicit ServerTls(std::shared_ptr<TlsPort> port) : port_(std::move(port)) {}

  // Of the files as they are now, or were when they last could be used. Null where they never could.
  std::shared_ptr<SSL_CTX> Context();

 private:
  const std::shared_ptr<TlsPort> port_;
  Mutex mutex_;
  std::optional<TlsIdentity> used_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<SSL_CTX> context_ ABSL_GUARDED_BY(mutex_);  // Of `used_`.
};

}  // namespace fsdpd
