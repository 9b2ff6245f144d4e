// The error of an operation whose peer is gone: a consequence of the peer's own end, which is the cause to
// report.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/cord.h>
#include <absl/strings/string_view.h>

namespace fsdpd {

inline constexpr char kPeerLostPayload[] = "fsdpd.PeerLost";

// UNAVAILABLE, marked.
inline absl::Status PeerLostError(absl::string_view message) {
  absl::Status status = absl::UnavailableError(message);
  status.SetPayload(kPeerLostPayload, absl::Cord());
  return status;
}

// Whether it is one, though it went through Annotated() (fsdp/engine/bad_step.h).
inline bool IsPeerLost(const absl::Status& status) { return status.GetPayload(kPeerLostPayload).has_value(); }

}  // namespace fsdpd
