// Network peer of a call for the audit log, such as "ipv4:127.0.0.1:41234". For a call that the web server
// makes within this process it is the browser's address.
//
// Pure.
#pragma once

#include <grpcpp/server_context.h>

#include <string>

namespace fsdpd {

// Metadata that is trusted only in calls from within this process: any client could set it.
constexpr char kForwardedPeer[] = "fsdpd-forwarded-peer";

std::string PeerOf(const grpc::ServerContextBase& context);

}  // namespace fsdpd
