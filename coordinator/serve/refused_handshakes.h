// Log lines for failed TLS handshakes, which gRPC reports only in its own log, without the peer's address. At
// most one line per minute and cause is logged, because any client can cause them at any rate.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// Replaces QuietGrpc(): call before the first use of gRPC. GRPC_VERBOSITY restores gRPC's own log.
void LogFailedHandshakes();

// Returns the cause in a line of gRPC's log; empty if the line does not report a failed handshake.
std::string HandshakeError(absl::string_view line);

}  // namespace fsdpd
