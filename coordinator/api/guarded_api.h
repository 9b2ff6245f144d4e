// Public API of a leading coordinator: every call passes the gate (api_gate.h), and its handler
// (api_handlers.h) does the work. A method without a row in base/api/api_table.h returns UNIMPLEMENTED.
//
// Thread-safe. Borrows its constructor arguments.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "base/api/api_table.h"
#include "coordinator/api/api_gate.h"
#include "coordinator/api/api_handlers.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {

class GuardedApi final : public v1::Coordinator::Service {
 public:
  GuardedApi(ApiHandlers* handlers, const ApiGate& gate) : handlers_(handlers), gate_(gate) {}

  // Ends all streams with UNAVAILABLE. Idempotent.
  void Close() { closing_ = true; }

#define FSDPD_SERVE(method, Answer, handler)                                                              \
  grpc::Status method(grpc::ServerContext* context, const v1::method##Request* request, Answer* answer)   \
      override {                                                                                          \
    return Serve(*FindApiMethod(#method), context, *request, ResponseOf(answer),                          \
                 [&](const ApiCall& call) { return handlers_->handler.method(call, *request, answer); }); \
  }
#define FSDPD_UNARY(method, handler, ...) FSDPD_SERVE(method, v1::method##Response, handler)
#define FSDPD_STREAM(method, handler, ...) \
  FSDPD_SERVE(method, grpc::ServerWriter<v1::method##Response>, handler)
  FSDPD_API_TABLE(FSDPD_UNARY, FSDPD_STREAM)
#undef FSDPD_UNARY
#undef FSDPD_STREAM
#undef FSDPD_SERVE

 private:
  grpc::Status Serve(const ApiMethod& method, grpc::ServerContext* context,
                     const google::protobuf::Message& request, const google::protobuf::Message* response,
                     absl::FunctionRef<absl::Status(const ApiCall&)> handle);

  ApiHandlers* const handlers_;
  const ApiGate gate_;
  ReaderStreams streams_;
  std::atomic<bool> closing_{false};
};

}  // namespace fsdpd
