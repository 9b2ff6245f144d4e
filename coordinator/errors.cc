#include "coordinator/errors.h"

#include <absl/strings/str_cat.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace fsdpd {
namespace {

constexpr char kTypePrefix[] = "type.googleapis.com/";
constexpr int kRetrySeconds = 1;

// The wire's code for each of ours, and the reason when the place that failed gave none. The numbers of both
// enums are the same by definition of google.rpc.Code; the table is what makes them our contract.
struct Row {
  absl::StatusCode code;
  grpc::StatusCode wire;
  const char* reason;
};
constexpr Row kTable[] = {
    {absl::StatusCode::kCancelled, grpc::StatusCode::CANCELLED, "CANCELLED"},
    {absl::StatusCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT, "INVALID_ARGUMENT"},
    {absl::StatusCode::kDeadlineExceeded, grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"},
    {absl::StatusCode::kNotFound, grpc::StatusCode::NOT_FOUND, "NOT_FOUND"},
    {absl::StatusCode::kAlreadyExists, grpc::StatusCode::ALREADY_EXISTS, "ALREADY_EXISTS"},
    {absl::StatusCode::kPermissionDenied, grpc::StatusCode::PERMISSION_DENIED, "PERMISSION_DENIED"},
    {absl::StatusCode::kResourceExhausted, grpc::StatusCode::RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED"},
    {absl::StatusCode::kFailedPrecondition, grpc::StatusCode::FAILED_PRECONDITION, "FAILED_PRECONDITION"},
    {absl::StatusCode::kAborted, grpc::StatusCode::ABORTED, "ABORTED"},
    {absl::StatusCode::kOutOfRange, grpc::StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE"},
    {absl::StatusCode::kUnimplemented, grpc::StatusCode::UNIMPLEMENTED, "UNIMPLEMENTED"},
    {absl::StatusCode::kInternal, grpc::StatusCode::INTERNAL, "INTERNAL"},
    {absl::StatusCode::kUnavailable, grpc::StatusCode::UNAVAILABLE, "UNAVAILABLE"},
    {absl::StatusCode::kDataLoss, grpc::StatusCode::DATA_LOSS, "STATE_CORRUPT"},
    {absl::StatusCode::kUnauthenticated, grpc::StatusCode::UNAUTHENTICATED, "UNAUTHENTICATED"},
};
constexpr Row kUnknown = {absl::StatusCode::kUnknown, grpc::StatusCode::UNKNOWN, "UNKNOWN"};

const Row& RowOf(absl::StatusCode code) {
  for (const Row& row : kTable) {
    if (row.code == code) return row;
  }
  return kUnknown;
}

template <typename Detail>
std::string UrlOf() {
  return absl::StrCat(kTypePrefix, Detail::descriptor()->full_name());
}

template <typename Detail>
void Attach(const Detail& detail, absl::Status* status) {
  status->SetPayload(UrlOf<Detail>(), absl::Cord(detail.SerializeAsString()));
}

void AttachInfo(absl::string_view reason, absl::Status* status) {
  google::rpc::ErrorInfo info;
  info.set_domain(kErrorDomain);
  info.set_reason(std::string(reason));
  Attach(info, status);
}

}  // namespace

absl::Status Refusal(absl::StatusCode code, absl::string_view reason, absl::string_view message) {
  absl::Status status(code, message);
  AttachInfo(reason, &status);
  return status;
}

absl::Status BadSpec(const Violations& faults) {
  google::rpc::BadRequest bad;
  std::string lines;
  for (const Violation& fault : faults) {
    if (fault.level != FaultLevel::kError) continue;
    auto* violation = bad.add_field_violations();
    violation->set_field(fault.field);
    violation->set_description(fault.fix.empty() ? fault.reason : absl::StrCat(fault.reason, " ", fault.fix));
    absl::StrAppend(&lines, "\n  ", fault.field, ": ", violation->description());
  }
  const int count = bad.field_violations_size();
  absl::Status status =
      Refusal(absl::StatusCode::kInvalidArgument, "BAD_SPEC",
              absl::StrCat("the job spec has ", count, " fault", count == 1 ? "" : "s", ":", lines));
  Attach(bad, &status);
  return status;
}

absl::Status BadField(absl::string_view field, absl::string_view reason) {
  absl::Status status =
      Refusal(absl::StatusCode::kInvalidArgument, "BAD_REQUEST", absl::StrCat(field, ": ", reason));
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(std::string(reason));
  Attach(bad, &status);
  return status;
}

absl::Status WrongState(absl::string_view reason, absl::string_view subject, absl::string_view message) {
  absl::Status status = Refusal(absl::StatusCode::kFailedPrecondition, reason, message);
  google::rpc::PreconditionFailure failure;
  auto* violation = failure.add_violations();
  violation->set_type(std::string(reason));
  violation->set_subject(std::string(subject));
  violation->set_description(std::string(message));
  Attach(failure, &status);
  return status;
}

absl::Status JobNotFound(absl::string_view id) {
  return Refusal(absl::StatusCode::kNotFound, "JOB_NOT_FOUND", absl::StrCat("no job '", id, "'"));
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const Row& row = RowOf(status.code());
  absl::Status full = status;
  if (!full.GetPayload(UrlOf<google::rpc::ErrorInfo>()).has_value()) AttachInfo(row.reason, &full);
  if (row.wire == grpc::StatusCode::UNAVAILABLE) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(kRetrySeconds);
    Attach(retry, &full);
  }
  google::rpc::Status wire;
  wire.set_code(row.wire);
  wire.set_message(std::string(status.message()));
  full.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    auto* detail = wire.add_details();
    detail->set_type_url(std::string(url));
    detail->set_value(std::string(payload));
  });
  return grpc::Status(row.wire, wire.message(), wire.SerializeAsString());
}

}  // namespace fsdpd
