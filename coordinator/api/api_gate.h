// Gate in front of every call of the public API: it authorizes the caller (authorizer.h), runs the handler,
// counts the call (meters.h), and writes changes and rejected calls to the audit log (audit_log.h).
//
// Thread-safe. Borrows its constructor arguments.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include "base/clock.h"
#include "coordinator/access/api_method.h"
#include "coordinator/access/audit_log.h"
#include "coordinator/access/authorizer.h"
#include "coordinator/metrics/meters.h"

namespace fsdpd {

class ApiGate {
 public:
  // `audit`: null if there is no audit log.
  ApiGate(const Authorizer* authorizer, AuditLog* audit, const Clock* clock, Meters* meters)
      : authorizer_(authorizer), audit_(audit), clock_(clock), meters_(meters) {}

  // `response`: null for a stream. The audit log names the job or node of `request`, or the job of
  // `response`.
  grpc::Status Pass(const ApiMethod& method, const grpc::ServerContext& context,
                    const google::protobuf::Message& request, const google::protobuf::Message* response,
                    absl::FunctionRef<absl::Status(const Caller&)> handle) const;

 private:
  const Authorizer* const authorizer_;
  AuditLog* const audit_;
  const Clock* const clock_;
  Meters* const meters_;
};

// The response of a unary call, and null for the writer of a stream.
inline const google::protobuf::Message* ResponseOf(const google::protobuf::Message* response) {
  return response;
}
inline const google::protobuf::Message* ResponseOf(const void*) { return nullptr; }

}  // namespace fsdpd
