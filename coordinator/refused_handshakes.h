// Handshakes that TLS refuses, in this process's log: the commonest fault of a new node, of which nobody else
// at the coordinator would hear. gRPC ends such a connection by itself; all that it says of one is a line of
// its own log, without the peer's address. One line a minute and cause, as who knocks may do so at any rate.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// Instead of QuietGrpc(), and like it before the first call of gRPC; GRPC_VERBOSITY brings all its words
// back.
void TellRefusedHandshakes();

// Why, of a line of gRPC's log; empty for one that tells of no such handshake.
std::string WhyRefused(absl::string_view line);

}  // namespace fsdpd
