// The coordinator's TLS certificate for the web server, which does not ask clients for certificates.
//
// Thread-safe. TlsPort reports errors of the files.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "base/net/tls_files.h"
#include "coordinator/access/tls_port.h"

namespace fsdpd {

class ServerTls {
 public:
  explicit ServerTls(std::shared_ptr<TlsPort> port) : port_(std::move(port)) {}

  // Context with the current files, or with the last valid ones. nullptr if they were never valid.
  std::shared_ptr<SSL_CTX> Context();

 private:
  const std::shared_ptr<TlsPort> port_;
  Mutex mutex_;
  std::optional<TlsIdentity> used_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<SSL_CTX> context_ ABSL_GUARDED_BY(mutex_);  // Made from used_.
};

}  // namespace fsdpd
