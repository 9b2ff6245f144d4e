#include "coordinator/access/peer.h"

namespace fsdpd {
namespace {

constexpr char kWithinProcess[] = "unknown";  // gRPC's peer for a channel without a socket, and for no other.

}  // namespace

std::string PeerOf(const grpc::ServerContextBase& context) {
  const std::string peer = context.peer();
  if (peer != kWithinProcess) return peer;
  const auto forwarded = context.client_metadata().find(kForwardedPeer);
  if (forwarded == context.client_metadata().end()) return peer;
  return std::string(forwarded->second.data(), forwarded->second.size());
}

}  // namespace fsdpd
