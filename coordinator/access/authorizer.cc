#include "coordinator/access/authorizer.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "base/net/tls_files.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

constexpr char kHeader[] = "authorization";
constexpr char kScheme[] = "Bearer ";
constexpr char kPemProperty[] = "x509_pem_cert";

absl::Status Unauthenticated(absl::string_view reason, absl::string_view message) {
  return Refusal(absl::StatusCode::kUnauthenticated, reason, message);
}

std::string WithArticle(PrincipalRole role) {
  const std::string name = NameOf(role);
  return absl::StrCat(absl::StrContains("aeiou", name.substr(0, 1)) ? "an " : "a ", name);
}

}  // namespace

absl::StatusOr<Caller> Authorizer::Identify(const grpc::ServerContextBase& context) const {
  if (open()) return Caller{};
  const auto header = context.client_metadata().find(kHeader);
  if (header == context.client_metadata().end()) {
    return Unauthenticated("MISSING_TOKEN",
                           "the call has no token; set FSDPD_TOKEN, or pass --token-file to fsdpctl");
  }
  absl::string_view token(header->second.data(), header->second.size());
  if (!absl::ConsumePrefix(&token, kScheme)) {
    return Unauthenticated("MISSING_TOKEN", "metadata 'authorization' must be 'Bearer <token>'");
  }
  const std::optional<Principal> principal = token_store_->Find(token);
  if (!principal.has_value()) {
    return Unauthenticated("UNKNOWN_TOKEN", "unknown token (it may have been rotated)");
  }
  return Caller{principal->name, principal->role, principal->project};
}

absl::Status Authorizer::Permit(const Caller& caller, const ApiMethod& method,
                                const std::string& job_id) const {
  if (caller.role >= method.role) return absl::OkStatus();
  if (caller.role >= method.own && !job_id.empty()) {
    const std::optional<std::string> submitter = submitter_of_(job_id);
    if (!submitter.has_value() || *submitter == caller.name) return absl::OkStatus();
  }
  const std::string what =
      absl::StrCat(method.name, method.own == method.role ? "" : " on a job of another user");
  return Refusal(absl::StatusCode::kPermissionDenied, "ROLE_REQUIRED",
                 absl::StrCat(what, " requires ", WithArticle(method.role), " (", caller.name, " is ",
                              WithArticle(caller.role), ")"),
                 {{"needed", NameOf(method.role)}, {"role", NameOf(caller.role)}});
}

absl::Status Authorizer::RequireCertificate(const grpc::ServerContextBase& context) const {
  if (open()) return absl::OkStatus();
  if (context.auth_context()->FindPropertyValues(kPemProperty).empty()) {
    return Unauthenticated("MISSING_CERTIFICATE",
                           "the agent presented no certificate; start it with --tls-cert and --tls-key");
  }
  return CheckNotRevoked(SerialOf(context));
}

std::string Authorizer::SerialOf(const grpc::ServerContextBase& context) const {
  if (revoked_ == nullptr) return "";
  const auto shown = context.auth_context()->FindPropertyValues(kPemProperty);
  if (shown.empty()) return "";
  return CertificateSerial(absl::string_view(shown.front().data(), shown.front().size())).value_or("");
}

std::vector<std::string> Authorizer::CertificateNamesOf(const grpc::ServerContextBase& context) const {
  const auto shown = context.auth_context()->FindPropertyValues(kPemProperty);
  if (shown.empty()) return {};
  return CertificateNames(absl::string_view(shown.front().data(), shown.front().size()))
      .value_or(std::vector<std::string>());
}

std::string Authorizer::NodeOf(const grpc::ServerContextBase& context) const {
  if (revoked_ == nullptr) return "";
  const std::vector<std::string> names = CertificateNamesOf(context);
  const auto name = std::find_if(names.begin(), names.end(),
                                 [](const std::string& each) { return CheckNodeName(each).ok(); });
  return name == names.end() ? "" : *name;
}

absl::Status Authorizer::CheckNotRevoked(const std::string& serial) const {
  if (revoked_ == nullptr || serial.empty() || !revoked_->Has(serial)) return absl::OkStatus();
  return Unauthenticated("REVOKED_CERTIFICATE",
                         absl::StrCat("the node's certificate with serial number ", serial,
                                      " is revoked; give the agent a new one (--tls-cert, --tls-key)"));
}

absl::Status Authorizer::AdmitNode(const grpc::ServerContextBase& context, const std::string& node) const {
  if (open()) return absl::OkStatus();
  FSDPD_RETURN_IF_ERROR(RequireCertificate(context));
  const grpc::string_ref shown = context.auth_context()->FindPropertyValues(kPemProperty).front();
  const absl::StatusOr<std::vector<std::string>> names =
      CertificateNames(absl::string_view(shown.data(), shown.size()));
  if (!names.ok()) return Unauthenticated("MISSING_CERTIFICATE", names.status().message());
  const absl::Status named = CheckNodeInNames(node, *names);
  if (named.ok()) return named;
  return Refusal(absl::StatusCode::kPermissionDenied, "NODE_NAME_MISMATCH", named.message());
}

}  // namespace fsdpd
