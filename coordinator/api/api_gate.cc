// Call path of every method: the authorizer authenticates and authorizes the caller, the handler of the
// call's row in the table does the work, and the result is written to the audit log.
#include "coordinator/api/api_gate.h"

#include <chrono>
#include <string>

#include "coordinator/access/peer.h"
#include "coordinator/request/errors.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxObject = 253;  // Limit of a node name; job ids are shorter.

// The value of a string field; "" if the message does not have it.
std::string TextOf(const google::protobuf::Message& message, const char* field_name) {
  const auto* field = message.GetDescriptor()->FindFieldByName(field_name);
  if (field == nullptr || field->is_repeated() ||
      field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING)
    return "";
  return message.GetReflection()->GetString(message, field);
}

// The job or node that the call acts on; "" if it has none. A submit names its job in the response.
std::string ObjectOf(const google::protobuf::Message& request, const google::protobuf::Message* response) {
  for (const char* field : {"id", "node"}) {
    if (const std::string named = TextOf(request, field); !named.empty()) return named;
  }
  const auto* const submitted = dynamic_cast<const v1::SubmitJobResponse*>(response);
  return submitted == nullptr ? "" : submitted->job().id();
}

}  // namespace

grpc::Status ApiGate::Pass(const ApiMethod& method, const grpc::ServerContext& context,
                           const google::protobuf::Message& request,
                           const google::protobuf::Message* response,
                           absl::FunctionRef<absl::Status(const Caller&)> handle) const {
  const auto begin = std::chrono::steady_clock::now();
  if (method.streams) meters_->Opened(method.name);
  const absl::StatusOr<Caller> caller = authorizer_->Identify(context);
  const absl::Status permitted =
      caller.ok() ? authorizer_->Permit(*caller, method, TextOf(request, "id")) : caller.status();
  const grpc::Status status = ToGrpc(permitted.ok() ? handle(*caller) : permitted);
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (method.streams) meters_->Closed(method.name, code);
  if (!method.streams)
    meters_->Called(method.name, code, absl::FromChrono(std::chrono::steady_clock::now() - begin));
  if (audit_ == nullptr || (permitted.ok() && !method.changes)) return status;
  AuditRecord record;
  record.time = clock_->Wall();
  record.unauthenticated = !caller.ok();
  if (caller.ok() && !caller->name.empty()) {
    record.who = caller->name;
    record.role = NameOf(caller->role);
  }
  record.from = PeerOf(context);
  record.method = method.name;
  record.object = ObjectOf(request, response);
  if (record.object.size() > kMaxObject) record.object = "(too long)";
  record.outcome = absl::StatusCodeToString(code);
  audit_->Write(record);
  return status;
}

}  // namespace fsdpd
