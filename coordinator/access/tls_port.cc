#include "coordinator/access/tls_port.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <grpc/grpc.h>

#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace fsdpd {

absl::StatusOr<std::shared_ptr<TlsPort>> TlsPort::Make(const TlsFiles& files, Clock* clock) {
  FSDPD_RETURN_IF_ERROR(Read(files, clock->Wall()).status());
  return std::shared_ptr<TlsPort>(new TlsPort(files, clock));
}

TlsPort::TlsPort(const TlsFiles& files, Clock* clock)
    : files_(files),
      clock_(clock),
      credentials_(grpc_ssl_server_credentials_create_with_options(
          grpc_ssl_server_credentials_create_options_using_config_fetcher(
              GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY, &TlsPort::Fetch, this))) {}

TlsPort::~TlsPort() { grpc_server_credentials_release(credentials_); }

int TlsPort::AddPortToServer(const std::string& address, grpc_server* server) {
  {
    MutexLock lock(&mutex_);
    given_ = false;
  }
  return grpc_server_add_http2_port(server, address.c_str(), credentials_);
}

grpc_ssl_certificate_config_reload_status TlsPort::Fetch(void* self,
                                                         grpc_ssl_server_certificate_config** config) {
  const std::optional<TlsIdentity> another = static_cast<TlsPort*>(self)->Another();
  if (!another.has_value()) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  const grpc_ssl_pem_key_cert_pair pair = {another->key.c_str(), another->certificate.c_str()};
  *config = grpc_ssl_server_certificate_config_create(another->trusted.c_str(), &pair, 1);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

absl::StatusOr<TlsIdentity> TlsPort::Read(const TlsFiles& files, absl::Time now) {
  absl::StatusOr<TlsIdentity> read = ReadTlsFiles(files, now);
  if (!read.ok() || read->serves) return read;
  return absl::InvalidArgumentError(
      absl::StrCat(files.certificate,
                   ": not a server certificate; create one with "
                   "`deploy/certificates DIR coordinator NAME` [INVALID_CERTIFICATE]"));
}

std::optional<TlsIdentity> TlsPort::Another() {
  Reread();
  MutexLock lock(&mutex_);
  return std::exchange(given_, true) ? std::nullopt : used_;
}

std::optional<TlsIdentity> TlsPort::Newest() { return NewestAndError().first; }

std::pair<std::optional<TlsIdentity>, std::string> TlsPort::NewestAndError() {
  Reread();
  MutexLock lock(&mutex_);
  return {used_, last_error_};
}

void TlsPort::Reread() {
  MutexLock reread(&reread_mutex_);
  absl::StatusOr<TlsIdentity> read = Read(files_, clock_->Wall());
  MutexLock lock(&mutex_);
  if (!read.ok()) {
    std::string error(read.status().message());
    if (std::exchange(last_error_, error) != error) {
      LogError("rejected TLS files; the previous ones stay in use error=%s", error);
    }
    return;
  }
  last_error_.clear();
  LogTlsWarning(*read, &last_warning_);
  if (used_.has_value() && used_->SameAs(*read)) return;
  given_ = false;
  std::vector<std::string> names = read->names;
  names.insert(names.end(), read->addresses.begin(), read->addresses.end());
  LogInfo("TLS certificate=%s names=%s expires=%s", files_.certificate, absl::StrJoin(names, ","),
          absl::FormatTime(read->not_after, absl::UTCTimeZone()));
  used_ = *std::move(read);
}

}  // namespace fsdpd
