#include "coordinator/web/web_api.h"

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "base/json_quote.h"
#include "base/lookup.h"
#include "coordinator/access/peer.h"
#include "coordinator/request/errors.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace fsdpd {
namespace {

constexpr char kJson[] = "application/json; charset=utf-8";

using Stub = v1::Coordinator::Stub;
using Context = grpc::ClientContext;
using NewContext = std::function<std::unique_ptr<Context>()>;  // A ClientContext serves one call.

grpc::Status Parse(const std::string& query, google::protobuf::Message* request) {
  if (query.empty()) return grpc::Status::OK;
  const auto parsed = google::protobuf::util::JsonStringToMessage(query, request);
  if (parsed.ok()) return grpc::Status::OK;
  // Further lines quote the input, which may be invalid UTF-8.
  const std::string words = parsed.message().as_string();
  return ToGrpc(BadField("q", words.substr(0, words.find('\n'))));
}

grpc::Status Print(const google::protobuf::Message& response, std::string* json) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const auto printed = google::protobuf::util::MessageToJsonString(response, json, options);
  return printed.ok() ? grpc::Status::OK : ToGrpc(absl::InternalError(printed.message().as_string()));
}

template <typename Request, typename Response,
          grpc::Status (Stub::*kMethod)(Context*, const Request&, Response*)>
grpc::Status Call(Stub* stub, const NewContext& context, const std::string& query, std::string* json) {
  Request request;
  Response response;
  grpc::Status status = Parse(query, &request);
  if (status.ok()) status = (stub->*kMethod)(context().get(), request, &response);
  return status.ok() ? Print(response, json) : status;
}

// Plans an existing job, because a spec may exceed the length of a URL.
grpc::Status PlanOfJob(Stub* stub, const NewContext& context, const std::string& query, std::string* json) {
  v1::GetJobRequest wanted;
  v1::GetJobResponse found;
  grpc::Status status = Parse(query, &wanted);
  if (status.ok()) status = stub->GetJob(context().get(), wanted, &found);
  if (!status.ok()) return status;
  const v1::Job& job = found.job();
  v1::PlanJobRequest request;
  *request.mutable_spec() = job.has_resolved() ? job.resolved() : job.spec();
  request.set_timeline(true);
  v1::PlanJobResponse response;
  status = stub->PlanJob(context().get(), request, &response);
  return status.ok() ? Print(response, json) : status;
}

struct Method {
  const char* name;
  grpc::Status (*call)(Stub*, const NewContext&, const std::string& query, std::string* json);
};

#define FSDPD_WEB_METHOD(name) \
  { #name, &Call < v1::name##Request, v1::name##Response, &Stub::name> }

// Unary and read-only: a GET must not change anything, or a link could.
constexpr Method kMethods[] = {
    FSDPD_WEB_METHOD(GetJob),   FSDPD_WEB_METHOD(GetStepTimeline), FSDPD_WEB_METHOD(GetVersion),
    FSDPD_WEB_METHOD(ListJobs), FSDPD_WEB_METHOD(ListNodes),       FSDPD_WEB_METHOD(ListSteps),
    {"PlanJob", &PlanOfJob},
};

#undef FSDPD_WEB_METHOD

constexpr std::pair<grpc::StatusCode, int> kHttpStatuses[] = {
    {grpc::StatusCode::INVALID_ARGUMENT, 400},   {grpc::StatusCode::FAILED_PRECONDITION, 400},
    {grpc::StatusCode::OUT_OF_RANGE, 400},       {grpc::StatusCode::UNAUTHENTICATED, 401},
    {grpc::StatusCode::PERMISSION_DENIED, 403},  {grpc::StatusCode::NOT_FOUND, 404},
    {grpc::StatusCode::RESOURCE_EXHAUSTED, 429}, {grpc::StatusCode::UNIMPLEMENTED, 501},
    {grpc::StatusCode::CANCELLED, 503},          {grpc::StatusCode::UNAVAILABLE, 503},
    {grpc::StatusCode::DEADLINE_EXCEEDED, 504}};

std::string ReasonOf(const grpc::Status& status, const std::string& code) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  if (!details.ParseFromString(status.error_details())) return code;
  for (const auto& detail : details.details()) {
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return code;
}

HttpResponse ErrorResponse(const grpc::Status& status, int http_status) {
  const std::string code = absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
  return {http_status, kJson,
          absl::StrCat("{\"code\":", JsonQuoted(code), ",\"reason\":", JsonQuoted(ReasonOf(status, code)),
                       ",\"message\":", JsonQuoted(status.error_message()), "}\n")};
}

HttpResponse ErrorResponse(const absl::Status& status, int http_status) {
  return ErrorResponse(ToGrpc(status), http_status);
}

}  // namespace

std::vector<std::string> WebApi::Methods() {
  std::vector<std::string> names;
  for (const Method& method : kMethods) names.push_back(method.name);
  return names;
}

HttpResponse WebApi::Answer(absl::string_view name, const HttpRequest& request,
                            const std::string& from) const {
  const Method* method = nullptr;
  for (const Method& each : kMethods) {
    if (each.name == name) method = &each;
  }
  if (method == nullptr)
    return ErrorResponse(absl::UnimplementedError("method: not served over HTTP; use the gRPC API"), 404);
  if (request.query.size() > kMaxWebQueryBytes)
    return ErrorResponse(BadField("q", "is longer than 8 KiB"), 400);
  // gRPC aborts the process for other characters.
  if (!std::all_of(request.authorization.begin(), request.authorization.end(), absl::ascii_isprint))
    return ErrorResponse(BadField("authorization", "must be printable ASCII"), 400);
  const auto deadline = std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kWebCallLimit);
  const auto context = [&] {
    auto made = std::make_unique<Context>();
    made->set_deadline(deadline);
    if (!request.authorization.empty()) made->AddMetadata("authorization", request.authorization);
    made->AddMetadata(kForwardedPeer, from);
    return made;
  };
  std::string json;
  const grpc::Status status = method->call(stub_.get(), context, request.query, &json);
  if (!status.ok()) return ErrorResponse(status, Lookup(kHttpStatuses, status.error_code(), 500));
  return {200, kJson, std::move(json)};
}

}  // namespace fsdpd
