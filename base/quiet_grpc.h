// gRPC prints what it cannot do to stderr, in a form of its own, before it says so to its caller, who says it
// better. GRPC_VERBOSITY brings its words back.
#pragma once

#include <grpc/support/log.h>

#include <cstdlib>

namespace fsdpd {

// Before the first call of gRPC.
inline void QuietGrpc() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace fsdpd
