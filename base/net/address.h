// Parser of HOST:PORT as written in flags. All programs use it, so that they interpret an address
// identically.
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

// INVALID_ARGUMENT with the reason. An IPv6 address must be in brackets. The host is required; "0.0.0.0" or
// "[::]" means all addresses of this machine. Names are not resolved.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// "HOST:PORT", or a comma-separated list: the addresses of several coordinators. INVALID_ARGUMENT as above.
absl::StatusOr<std::vector<std::string>> ParseAddresses(absl::string_view text);

// Checks that `host` is a name or address of this machine, as needed for an address that others connect to.
// INVALID_ARGUMENT with the reason.
absl::Status CheckOwnAddress(const std::string& host);

// Whether `address` is reachable from this machine only: 127.0.0.0/8, ::1, or the name localhost. Other names
// count as reachable from elsewhere, whatever they resolve to.
bool IsLoopback(const HostPort& address);

// The format that ParseHostPort accepts.
std::string ToString(const HostPort& address);

}  // namespace fsdpd
