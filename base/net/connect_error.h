// Explanation of a failed connection to the coordinator, with the flag to change. gRPC reports all causes as
// UNAVAILABLE and differs only in the text, in which the last part is the cause ("failed to connect to all
// addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused").
//
// Pure.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// Failures of TLS that gRPC's message implies, as far as flags can fix them.
enum class ConnectError {
  kOther,
  kUntrustedCertificate,  // The certificate of the server does not verify.
  kClosed,                // The server closed an established connection.
  kClosedOnConnect,       // It closed the connection before it was established.
  kAlertOnConnect,        // It sent a TLS alert before it was established.
};
ConnectError ConnectErrorOf(absl::string_view message);

// TLS settings of this side: none, a CA (fsdpctl), or a CA and a certificate (agent).
enum class OwnTls { kNone, kTrust, kCertificate };

// `message`: text of gRPC. Unknown causes are returned unchanged, without the text that gRPC wraps them in.
std::string ConnectErrorText(absl::string_view message, OwnTls own);

// Whether the message of gRPC is about an unknown host name.
bool IsUnknownName(absl::string_view message);

// Whether `words` mean that nothing listens at the address, so starting a coordinator would help.
bool NothingListens(absl::string_view words);

}  // namespace fsdpd
