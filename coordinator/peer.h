// Where a call came from, for the record: "ipv4:127.0.0.1:41234". Of one that the page's server makes within
// this process, where the browser is.
//
// Thread-safe: pure functions.
#pragma once

#include <grpcpp/server_context.h>

#include <string>

namespace fsdpd {

// Metadata that counts in calls from within the process alone: others may write there what they like.
constexpr char kForwardedPeer[] = "fsdpd-forwarded-peer";

std::string PeerOf(const grpc::ServerContextBase& context);

}  // namespace fsdpd
