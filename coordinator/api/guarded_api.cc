#include "coordinator/api/guarded_api.h"

namespace fsdpd {

grpc::Status GuardedApi::Serve(const ApiMethod& method, grpc::ServerContext* context,
                               const google::protobuf::Message& request,
                               const google::protobuf::Message* response,
                               absl::FunctionRef<absl::Status(const ApiCall&)> handle) {
  return gate_.Pass(method, *context, request, response, [&](const Caller& caller) {
    const ApiCall call{context, caller, &closing_};
    if (!method.reader.has_value()) return handle(call);
    const ReaderStreams::Place place(&streams_, caller.name, *method.reader);
    return place.status().ok() ? handle(call) : place.status();
  });
}

}  // namespace fsdpd
