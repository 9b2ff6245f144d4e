// Marker of errors that another rank caused: its connection broke, or this rank repeats an error that a peer
// detected. The root cause is the other rank's exit.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/cord.h>
#include <absl/strings/string_view.h>

namespace fsdpd {

inline constexpr char kPeerLostPayload[] = "fsdpd.PeerLost";

// Marks an error as a peer's.
inline absl::Status OfPeer(absl::Status status) {
  status.SetPayload(kPeerLostPayload, absl::Cord());
  return status;
}

// UNAVAILABLE, marked as a peer's.
inline absl::Status PeerLostError(absl::string_view message) {
  return OfPeer(absl::UnavailableError(message));
}

// Whether the error is marked, even if it was Annotated() (fsdp/engine/bad_step.h).
inline bool IsPeerLost(const absl::Status& status) { return status.GetPayload(kPeerLostPayload).has_value(); }

}  // namespace fsdpd
