// A call of the public API as its handler sees it, after authorization (api_gate.h). Handlers are functions
// of the method's name that return an absl::Status, whose errors errors.h defines on the wire.
#pragma once

#include <absl/status/status.h>
#include <grpcpp/grpcpp.h>

#include <atomic>

#include "coordinator/access/caller.h"

namespace fsdpd {

struct ApiCall {
  grpc::ServerContext* context = nullptr;
  Caller caller = {};
  const std::atomic<bool>* closing = nullptr;  // Whether the coordinator stops. Null: it does not.

  bool IsClosing() const { return closing != nullptr && *closing; }
  // Checked by handlers that wait, every kStreamPoll (reader_streams.h).
  absl::Status CheckOpen() const {
    if (context->IsCancelled()) return absl::CancelledError("the client disconnected");
    if (IsClosing()) return absl::UnavailableError("the coordinator is stopping; call again to continue");
    return absl::OkStatus();
  }
};

}  // namespace fsdpd
