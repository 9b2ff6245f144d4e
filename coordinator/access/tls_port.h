// TLS credentials of the coordinator's port: its certificate, and the CAs of client certificates. The files
// are reread at each new connection, so they can be replaced while the coordinator runs; open connections are
// not affected. An unusable set of files is logged once, and the previous set stays in use.
//
// A client may present a certificate of a trusted CA, or none: agents must present one
// (coordinator/access/authorizer.h), users have tokens. A certificate of another CA, or an expired one, fails
// the handshake.
//
// Thread-safe. Outlives the consecutive servers that listen with it. Each starts with the set in use,
// whatever the files contain by then.
#pragma once

#include <absl/status/statusor.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/net/tls_files.h"

namespace fsdpd {

class TlsPort final : public grpc::ServerCredentials {
 public:
  // Fails for files that cannot be used now.
  static absl::StatusOr<std::shared_ptr<TlsPort>> Make(const TlsFiles& files, Clock* clock);
  ~TlsPort() override;

  // The set to use for listeners other than gRPC; empty if none has been usable yet.
  std::optional<TlsIdentity> Newest();
  // Newest(), and why the current files cannot be used, so that it is an older set; "" if they can.
  std::pair<std::optional<TlsIdentity>, std::string> NewestAndError();

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  TlsPort(const TlsFiles& files, Clock* clock);
  int AddPortToServer(const std::string& address, grpc_server* server) override;
  // gRPC calls it before every handshake.
  static grpc_ssl_certificate_config_reload_status Fetch(void* self,
                                                         grpc_ssl_server_certificate_config** config);
  // Returns the set to use from now on; empty to keep the one in use.
  std::optional<TlsIdentity> Another();
  void Reread();
  static absl::StatusOr<TlsIdentity> Read(const TlsFiles& files, absl::Time now);

  const TlsFiles files_;
  Clock* const clock_;
  grpc_server_credentials* const credentials_;
  // Held from the read of the files until they are in use, so that a slow reader cannot restore an older set.
  Mutex reread_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  Mutex mutex_;
  std::optional<TlsIdentity> used_ ABSL_GUARDED_BY(mutex_);
  bool given_ ABSL_GUARDED_BY(mutex_) = false;  // Whether `used_` was given to gRPC's current server.
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
  std::string last_warning_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
