// Why no connection to the coordinator came about, in words of who set it up. gRPC has one code for all of
// it, UNAVAILABLE, and tells the cause by text, of which the end is what counts ("failed to connect to all
// addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused").
//
// Thread safety: pure.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// What this side brings: nothing, the authorities that it trusts (fsdpctl), or a certificate too (an agent).
enum class OwnTls { kNone, kTrust, kCertificate };

// `message`: gRPC's. What is not known comes back as it is, without what gRPC wrapped it in.
std::string WordsOfConnectFault(absl::string_view message, OwnTls own);

// Whether gRPC's message says that the coordinator's name is unknown.
bool IsUnknownName(absl::string_view message);

// Whether the words say that nobody is there, so that to start a coordinator would help.
bool NobodyIsThere(absl::string_view words);

}  // namespace fsdpd
