// Read-only HTTP gateway to the public API: GET /api/METHOD?q=JSON for a few methods. A call goes through the
// in-process channel of the gRPC server with the browser's token, which authorizes and audits it. PlanJob's q
// is a job, {id}.
//
// Thread-safe. A call takes at most kWebCallLimit.
#pragma once

#include <absl/strings/string_view.h>
#include <absl/time/time.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "coordinator/web/http_message.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {

constexpr absl::Duration kWebCallLimit = absl::Seconds(10);
constexpr size_t kMaxWebQueryBytes = 8 << 10;

class WebApi {
 public:
  // `channel`: in-process. It may be shut down first; then calls return UNAVAILABLE.
  explicit WebApi(const std::shared_ptr<grpc::Channel>& channel) : stub_(v1::Coordinator::NewStub(channel)) {}

  // Returns the response as JSON, or {code, reason, message} with gRPC's names and the corresponding HTTP
  // status. `from`: the browser's address, for the audit log.
  HttpResponse Answer(absl::string_view method, const HttpRequest& request, const std::string& from) const;

  static std::vector<std::string> Methods();

 private:
  const std::unique_ptr<v1::Coordinator::Stub> stub_;
};

}  // namespace fsdpd
