// The coordinator's side of TLS: what it shows, and whose certificates it takes. The files are read again
// whenever somebody connects, so they can be replaced while it runs; connections that stand stay as they are.
// A set that cannot work is said in the log, once, and the set before it stays in use.
//
// Who connects may show a certificate of one of the trusted authorities, or none: agents must
// (coordinator/authorizer.h), people have tokens. One of another authority, or one that has expired, ends the
// handshake.
//
// Thread-safe. Outlives the servers that listen with it, one after the other; each begins with the set in
// use, whatever the files hold by then.
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
#include "base/tls_files.h"

namespace fsdpd {

class TlsPort final : public grpc::ServerCredentials {
 public:
  // Fails for files that cannot serve now.
  static absl::StatusOr<std::shared_ptr<TlsPort>> Make(const TlsFiles& files, Clock* clock);
  ~TlsPort() override;

  // The set to show from now on, for who listens beside gRPC; nothing where none could be used yet.
  std::optional<TlsIdentity> Newest();
  // Newest(), and why the files cannot be used, so that it is an older set; "" where they can.
  std::pair<std::optional<TlsIdentity>, std::string> NewestAndFault();

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  TlsPort(const TlsFiles& files, Clock* clock);
  int AddPortToServer(const std::string& address, grpc_server* server) override;
  // gRPC asks before every handshake.
  static grpc_ssl_certificate_config_reload_status Fetch(void* self,
                                                         grpc_ssl_server_certificate_config** config);
  // The set to use from now on; nothing while the one in use stays.
  std::optional<TlsIdentity> Another();
  void Reread();
  static absl::StatusOr<TlsIdentity> Read(const TlsFiles& files, absl::Time now);

  const TlsFiles files_;
  Clock* const clock_;
  grpc_server_credentials* const credentials_;
  // Held from the read of the files until they are in use: a slow reader puts no older set back.
  Mutex reread_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  Mutex mutex_;
  std::optional<TlsIdentity> used_ ABSL_GUARDED_BY(mutex_);
  bool given_ ABSL_GUARDED_BY(mutex_) = false;  // `used_`, to gRPC's server that listens now.
  std::string last_fault_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
