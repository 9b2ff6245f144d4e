// Errors that another rank caused: its connection broke, or it met the error and this rank reports it again.
// The cause to report is the other rank's own exit.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/cord.h>
#include <absl/strings/string_view.h>

namespace fsdpd {

inline constexpr char kPeerLostPayload[] = "fsdpd.PeerLost";

// The same error, marked as another rank's.
inline absl::Status OfPeer(absl::Status status) {
  status.SetPayload(kPeerLostPayload, absl::Cord());
  return status;
}

// UNAVAILABLE, marked.
inline absl::Status PeerLostError(absl::string_view message) {
  return OfPeer(absl::UnavailableError(message));
}

// Whether it is marked, though it went through Annotated() (fsdp/engine/bad_step.h).
inline bool IsPeerLost(const absl::Status& status) { return status.GetPayload(kPeerLostPayload).has_value(); }

}  // namespace fsdpd
