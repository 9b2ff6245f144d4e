// The page's way to the public API: GET /api/METHOD?q=JSON of a few methods that only read. A call goes
// through the very server that serves gRPC, with the token that the browser brought, so that who may call
// what is asked in one place (authorizer.h) and what is refused goes on one record. PlanJob's q is a job,
// {id}.
//
// Thread-safe. A call takes kWebCallLimit at most.
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
  // `channel`: within this process; it may go before this does, and calls are UNAVAILABLE then.
  explicit WebApi(const std::shared_ptr<grpc::Channel>& channel) : stub_(v1::Coordinator::NewStub(channel)) {}

  // JSON: the answer, or {code, reason, message} with gRPC's names, and the status that HTTP has for the
  // code. `from`: where the browser is, for the record.
  HttpAnswer Answer(absl::string_view method, const HttpRequest& request, const std::string& from) const;

  static std::vector<std::string> Methods();

 private:
  const std::unique_ptr<v1::Coordinator::Stub> stub_;
};

}  // namespace fsdpd
