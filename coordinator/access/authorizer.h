// Authentication and authorization of callers. Users present a token of the token file, agents a certificate
// with their node's name. Without authentication every caller may do everything, and the coordinator listens
// on loopback only.
//
// Errors: UNAUTHENTICATED (MISSING_TOKEN, UNKNOWN_TOKEN, MISSING_CERTIFICATE, REVOKED_CERTIFICATE) without
// valid credentials, PERMISSION_DENIED (ROLE_REQUIRED with both roles, NODE_NAME_MISMATCH with both names)
// with credentials that do not suffice.
//
// Thread-safe. Borrows its constructor arguments.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/server_context.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/access/api_method.h"
#include "coordinator/access/caller.h"
#include "coordinator/access/revoked_certificates.h"
#include "coordinator/access/token_store.h"

namespace fsdpd {

class Authorizer {
 public:
  // Submitter of a job: nullopt if the job does not exist, "" if the submitter is unknown.
  using SubmitterOf = std::function<std::optional<std::string>(const std::string& job_id)>;

  // `tokens`: null if authentication is off. `revoked`: null if certificates are not checked for revocation.
  Authorizer(TokenStore* tokens, SubmitterOf submitter_of, RevokedCertificates* revoked)
      : token_store_(tokens), submitter_of_(std::move(submitter_of)), revoked_(revoked) {}

  // Authenticates the caller, for any method.
  absl::StatusOr<Caller> Identify(const grpc::ServerContextBase& context) const;
  // `job_id`: empty if the method has no job. A job that does not exist is reported by the method itself.
  absl::Status Permit(const Caller& caller, const ApiMethod& method, const std::string& job_id) const;

  // Checks an agent before its first message: without a valid certificate it may not hold a stream.
  absl::Status RequireCertificate(const grpc::ServerContextBase& context) const;
  // Serial number of the presented certificate; "" if absent, or certificates are not checked for
  // revocation.
  std::string SerialOf(const grpc::ServerContextBase& context) const;
  // Names in the presented certificate; empty if absent.
  std::vector<std::string> CertificateNamesOf(const grpc::ServerContextBase& context) const;
  // The node in the certificate; "" as for SerialOf(), or if it names none.
  std::string NodeOf(const grpc::ServerContextBase& context) const;
  // Whether the certificate of an accepted stream has been revoked since.
  absl::Status CheckNotRevoked(const std::string& serial) const;
  // Checks an agent that claims to be `node`.
  absl::Status AdmitNode(const grpc::ServerContextBase& context, const std::string& node) const;

  bool open() const { return token_store_ == nullptr; }

 private:
  TokenStore* const token_store_;
  const SubmitterOf submitter_of_;
  RevokedCertificates* const revoked_;
};

}  // namespace fsdpd
