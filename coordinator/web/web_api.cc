#include "coordinator/web/web_api.h"

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>

#include "base/json_quote.h"
#include "coordinator/errors.h"
#include "coordinator/peer.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace fsdpd {
namespace {

constexpr char kJson[] = "application/json; charset=utf-8";

using Stub = v1::Coordinator::Stub;
using Context = grpc::ClientContext;

template <typename Request, typename Response,
          grpc::Status (Stub::*kMethod)(Context*, const Request&, Response*)>
grpc::Status Call(Stub* stub, Context* context, const std::string& query, std::string* json) {
  Request request;
  if (!query.empty()) {
    const auto parsed = google::protobuf::util::JsonStringToMessage(query, &request);
    if (!parsed.ok()) {
      // Its other lines quote what came, which may be no UTF-8.
      const std::string words = parsed.message().as_string();
      return ToGrpc(BadField("q", words.substr(0, words.find('\n'))));
    }
  }
  Response response;
  const grpc::Status status = (stub->*kMethod)(context, request, &response);
  if (!status.ok()) return status;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const auto printed = google::protobuf::util::MessageToJsonString(response, json, options);
  return printed.ok() ? status : ToGrpc(absl::InternalError(printed.message().as_string()));
}

struct Method {
  const char* name;
  grpc::Status (*call)(Stub*, Context*, const std::string& query, std::string* json);
};

#define FSDPD_WEB_METHOD(name) \
  { #name, &Call < v1::name##Request, v1::name##Response, &Stub::name> }

// Unary, and none of them changes anything: a link that somebody sends would do so otherwise.
constexpr Method kMethods[] = {
    FSDPD_WEB_METHOD(GetJob),   FSDPD_WEB_METHOD(GetStepCourse), FSDPD_WEB_METHOD(GetVersion),
    FSDPD_WEB_METHOD(ListJobs), FSDPD_WEB_METHOD(ListNodes),     FSDPD_WEB_METHOD(ListSteps),
};

#undef FSDPD_WEB_METHOD

int HttpStatusOf(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::OUT_OF_RANGE:
      return 400;
    case grpc::StatusCode::UNAUTHENTICATED:
      return 401;
    case grpc::StatusCode::PERMISSION_DENIED:
      return 403;
    case grpc::StatusCode::NOT_FOUND:
      return 404;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return 429;
    case grpc::StatusCode::UNIMPLEMENTED:
      return 501;
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNAVAILABLE:
      return 503;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return 504;
    default:
      return 500;
  }
}

std::string ReasonOf(const grpc::Status& status, const std::string& code) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  if (!details.ParseFromString(status.error_details())) return code;
  for (const auto& detail : details.details()) {
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return code;
}

HttpAnswer Refused(const grpc::Status& status, int http_status) {
  const std::string code = absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
  return {http_status, kJson,
          absl::StrCat("{\"code\":", JsonQuoted(code), ",\"reason\":", JsonQuoted(ReasonOf(status, code)),
                       ",\"message\":", JsonQuoted(status.error_message()), "}\n")};
}

HttpAnswer Refused(const absl::Status& status, int http_status) {
  return Refused(ToGrpc(status), http_status);
}

}  // namespace

std::vector<std::string> WebApi::Methods() {
  std::vector<std::string> names;
  for (const Method& method : kMethods) names.push_back(method.name);
  return names;
}

HttpAnswer WebApi::Answer(absl::string_view name, const HttpRequest& request, const std::string& from) const {
  const Method* method = nullptr;
  for (const Method& each : kMethods) {
    if (each.name == name) method = &each;
  }
  if (method == nullptr)
    return Refused(absl::UnimplementedError("the page has no such method; the API of gRPC has more"), 404);
  if (request.query.size() > kMaxWebQueryBytes) return Refused(BadField("q", "is longer than 8 KiB"), 400);
  // Others than these end the process in gRPC.
  if (!std::all_of(request.authorization.begin(), request.authorization.end(), absl::ascii_isprint))
    return Refused(BadField("authorization", "is to hold printable ASCII"), 400);
  Context context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kWebCallLimit));
  if (!request.authorization.empty()) context.AddMetadata("authorization", request.authorization);
  context.AddMetadata(kForwardedPeer, from);
  std::string json;
  const grpc::Status status = method->call(stub_.get(), &context, request.query, &json);
  if (!status.ok()) return Refused(status, HttpStatusOf(status.error_code()));
  return {200, kJson, std::move(json)};
}

}  // namespace fsdpd
