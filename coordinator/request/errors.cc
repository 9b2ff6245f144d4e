#include "coordinator/request/errors.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <set>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {
namespace {

constexpr char kTypePrefix[] = "type.googleapis.com/";
constexpr int kRetrySeconds = 1;
// gRPC clients accept 8 KiB of metadata by default. The details of a refusal get 4 KiB of that (5.4 KiB after
// base64 encoding for transport); its message, which is sent twice, has about 300 bytes.
constexpr size_t kMaxDetailBytes = 4096;
constexpr size_t kMaxRulesBytes = 512;
constexpr size_t kMaxMessageText = 256;
// A reason may quote a value of the spec of any length.
constexpr size_t kMaxTextBytes = 512;

// The wire code of each absl code, and the default reason of an error without one. The numbers of both enums
// are equal by definition of google.rpc.Code; the table makes them part of the API contract.
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

google::rpc::ErrorInfo InfoOf(absl::string_view reason) {
  google::rpc::ErrorInfo info;
  info.set_domain(kErrorDomain);
  info.set_reason(std::string(reason));
  return info;
}

void AttachInfo(absl::string_view reason, absl::Status* status) { Attach(InfoOf(reason), status); }

// Truncated at a character boundary: a string field must be valid UTF-8.
std::string Clipped(const std::string& text, size_t bytes) {
  if (text.size() <= bytes) return text;
  size_t end = bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

v1::Violation ToClippedProto(const Violation& fault) {
  v1::Violation proto;
  proto.set_rule(fault.rule);
  proto.set_severity(v1::SEVERITY_ERROR);
  proto.set_field(Clipped(fault.field, kMaxTextBytes));
  proto.set_reason(Clipped(fault.reason, kMaxTextBytes));
  proto.set_fix(Clipped(fault.fix, kMaxTextBytes));
  return proto;
}

// The details of a rejected spec, filled with violations until the size limit.
class SpecDetails {
 public:
  void Add(const Violation& fault) {
    AddRule(fault.rule);
    const v1::Violation proto = ToClippedProto(fault);
    google::rpc::BadRequest::FieldViolation violation;
    violation.set_field(proto.field());
    violation.set_description(proto.reason());
    const size_t bytes = proto.ByteSizeLong() + violation.ByteSizeLong() + kFraming;
    // In order: the omitted violations are the end of the list, not its longest entries.
    if (violations_.more() > 0 || bytes_ + bytes > kMaxDetailBytes)
      return violations_.set_more(violations_.more() + 1);
    bytes_ += bytes;
    *violations_.add_violations() = proto;
    *bad_.add_field_violations() = violation;
  }
  void AttachTo(absl::Status* status) {
    google::rpc::ErrorInfo info = InfoOf("INVALID_SPEC");
    if (!rules_.empty()) (*info.mutable_metadata())["rules"] = absl::StrJoin(rules_, ",");
    if (violations_.more() > 0) {
      bad_.add_field_violations()->set_description(
          absl::StrCat("and ", violations_.more(), " more errors; ValidateJob returns all of them"));
    }
    Attach(info, status);
    Attach(bad_, status);
    Attach(violations_, status);
  }

 private:
  static constexpr size_t kFraming = 8;  // Tags and lengths.

  void AddRule(const std::string& rule) {
    if (rule.empty() || rules_bytes_ + rule.size() > kMaxRulesBytes || !rules_.insert(rule).second) return;
    rules_bytes_ += rule.size() + 1;
    bytes_ += rule.size() + 1;
  }

  google::rpc::BadRequest bad_;
  v1::SpecViolations violations_;
  std::set<std::string> rules_;
  size_t rules_bytes_ = 0;
  size_t bytes_ = 0;
};

}  // namespace

absl::Status Refusal(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                     const std::map<std::string, std::string>& metadata) {
  absl::Status status(code, message);
  google::rpc::ErrorInfo info = InfoOf(reason);
  info.mutable_metadata()->insert(metadata.begin(), metadata.end());
  Attach(info, &status);
  return status;
}

absl::Status BadSpec(const Violations& violations) {
  SpecDetails details;
  std::string first;
  int count = 0;
  for (const Violation& fault : violations) {
    if (fault.level != ViolationLevel::kError) continue;
    details.Add(fault);
    if (count++ == 0) first = Clipped(absl::StrCat(fault.field, ": ", fault.reason), kMaxMessageText);
  }
  absl::Status status = absl::InvalidArgumentError(
      count == 1 ? absl::StrCat("the job spec has 1 error: ", first)
                 : absl::StrCat("the job spec has ", count, " errors; the first: ", first));
  details.AttachTo(&status);
  return status;
}

absl::Status BadField(absl::string_view field, absl::string_view reason) {
  absl::Status status =
      Refusal(absl::StatusCode::kInvalidArgument, "INVALID_REQUEST", absl::StrCat(field, ": ", reason));
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

absl::Status CheckJobId(const std::string& id) {
  if (id.empty()) return BadField("id", "is required; pass the id that SubmitJob returned");
  if (id.size() > 64)
    return BadField("id", absl::StrCat("is not a job id (got ", id.size(), " characters, want at most 64)"));
  return absl::OkStatus();
}

absl::Status JobNotFound(absl::string_view id) {
  return Refusal(absl::StatusCode::kNotFound, "JOB_NOT_FOUND", absl::StrCat("no job '", id, "'"));
}

absl::Status NodeNotFound(absl::string_view name) {
  return Refusal(absl::StatusCode::kNotFound, "NODE_NOT_FOUND", absl::StrCat("no node '", name, "'"));
}

absl::Status JobNotLaunched(absl::string_view job, absl::string_view what, absl::string_view reason) {
  return WrongState("JOB_NOT_LAUNCHED", absl::StrCat("jobs/", job),
                    absl::StrCat("job ", job, " was not launched, so it has no ", what, ": ", reason));
}

absl::Status AttemptNotFound(absl::string_view job, int attempts) {
  return Refusal(absl::StatusCode::kNotFound, "ATTEMPT_NOT_FOUND",
                 attempts == 0 ? absl::StrCat("job ", job, " was not launched yet")
                               : absl::StrCat("job ", job, " has attempts 1..", attempts));
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
