// HOST:PORT as people write it in flags: one reading of it for all programs, so that none listens or connects
// somewhere else than was written.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <string>
#include <vector>

namespace fsdpd {

struct HostPort {
  std::string host;  // Without brackets: "127.0.0.1", "::1", "node-0.example".
  int port = 0;      // 0 .. 65535.
};

// INVALID_ARGUMENT says what is wrong. An IPv6 address stands in brackets; a host is required, and "0.0.0.0"
// or "[::]" names all of a machine's. Names are not resolved.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// "HOST:PORT", or several with commas between them: where to find one of several coordinators.
// INVALID_ARGUMENT likewise.
absl::StatusOr<std::vector<std::string>> ParseAddresses(absl::string_view text);

// A name or an address that this machine has, as who is to be reached at it must. INVALID_ARGUMENT says why
// not.
absl::Status CheckOwnAddress(const std::string& host);

// Whether only this machine reaches what listens there: 127.0.0.0/8, ::1, or the name localhost. Other names
// count as reachable from elsewhere, whatever they resolve to today.
bool IsLoopback(const HostPort& address);

// As ParseHostPort reads it.
std::string ToString(const HostPort& address);

}  // namespace fsdpd
