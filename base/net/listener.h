// Listening TCP sockets.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <vector>

#include "base/net/address.h"
#include "base/unique_fd.h"

namespace fsdpd {

struct Listener {
  UniqueFd fd;  // Non-blocking, close-on-exec.
  HostPort address;
};

// Port 0 picks a port, which the result contains. UNAVAILABLE; `what` ("metrics") names the service in the
// message.
absl::StatusOr<Listener> Listen(const HostPort& address, absl::string_view what);
// Listens on all addresses that the host name resolves to, at one port; 0.0.0.0 and [::] include IPv4 and
// IPv6. Fails only if none of them works.
absl::StatusOr<std::vector<Listener>> ListenOnAll(const HostPort& address, absl::string_view what);

}  // namespace fsdpd
