// Suppression of the log output of gRPC: it prints errors to stderr in its own format before it returns them
// to the caller, which reports them better. Setting GRPC_VERBOSITY enables it again.
#pragma once

#include <grpc/support/log.h>

#include <cstdlib>

namespace fsdpd {

// Call before using gRPC.
inline void QuietGrpc() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace fsdpd
