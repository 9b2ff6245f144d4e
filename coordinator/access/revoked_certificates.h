// Serial numbers of node certificates that the coordinator no longer accepts (--revoked-certs): a text
// file with a hexadecimal serial on each line, as `openssl x509 -noout -serial` prints it, and '#'
// comments. An operator edits it while the coordinator runs. AgentService checks it when an agent sends
// a message, at most once per second, so an open stream of a revoked certificate ends at the node's next
// heartbeat.
//
// A file with an error leaves the last valid list in use (watched_file.h). An empty file is an error, at
// start too, since it may be half written or emptied by mistake: keep a comment in it.
//
// Thread-safe.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <memory>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "coordinator/access/watched_file.h"

namespace fsdpd {

using Serials = std::set<std::string>;

// Returns serials in the format of CertificateSerial() (base/net/tls_files.h). INVALID_ARGUMENT names the
// first invalid line.
absl::StatusOr<Serials> ParseSerials(absl::string_view text);

class RevokedCertificates {
 public:
  // Fails for a file that cannot be read, or that has an error.
  static absl::StatusOr<std::unique_ptr<RevokedCertificates>> Open(const std::string& path, Clock* clock);

  bool Has(const std::string& serial);
  size_t size();  // Rereads too.
  bool Stale() { return !file_.Refresh(); }

 private:
  RevokedCertificates(const std::string& path, Clock* clock);
  absl::Status Take(const std::string& text);

  WatchedFile file_;
  Mutex mutex_;
  Serials serials_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
