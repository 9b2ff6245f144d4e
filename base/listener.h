// A TCP socket that is listened on.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <vector>

#include "base/address.h"
#include "base/unique_fd.h"

namespace fsdpd {

struct Listener {
  UniqueFd fd;  // Does not block; gone with an exec.
  HostPort address;
};

// Port 0 picks one, which the result has. UNAVAILABLE, with `what` ("metrics") as what cannot be served
// there.
absl::StatusOr<Listener> Listen(const HostPort& address, absl::string_view what);
// On every address that the host's name resolves to, at one port; 0.0.0.0 and [::] are both IPv4 and IPv6.
// Fails where none can be listened on.
absl::StatusOr<std::vector<Listener>> ListenOnAll(const HostPort& address, absl::string_view what);

}  // namespace fsdpd
