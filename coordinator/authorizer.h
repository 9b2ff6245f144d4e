// Who calls, and may it? TokenStore show a token of the token file, agents a certificate with their node's
// name. A coordinator that was told to ask nobody lets everybody do everything; it listens on loopback alone.
//
// Refusals: UNAUTHENTICATED (NO_TOKEN, UNKNOWN_TOKEN, NO_CERTIFICATE, REVOKED_CERTIFICATE) for who is
// nobody, PERMISSION_DENIED (ROLE_NEEDED with both roles, WRONG_NODE with both names) for who is somebody
// else.
//
// Thread-safe. Borrows what it is made of.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/server_context.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/caller.h"
#include "coordinator/permissions.h"
#include "coordinator/revoked_certificates.h"
#include "coordinator/token_store.h"

namespace fsdpd {

class Authorizer {
 public:
  // Of a job: nothing where there is none, and "" where it is not known.
  using SubmitterOf = std::function<std::optional<std::string>(const std::string& job_id)>;

  // `people`: null where nobody is asked. `revoked`: null where no certificate is.
  Authorizer(TokenStore* people, SubmitterOf submitter_of, RevokedCertificates* revoked)
      : token_store_(people), submitter_of_(std::move(submitter_of)), revoked_(revoked) {}

  // Who it is, whatever it wants.
  absl::StatusOr<Caller> Identify(const grpc::ServerContextBase& context) const;
  // `job_id`: empty where the method is of no job. One that is not there is for the method to tell.
  absl::Status Permit(const Caller& caller, absl::string_view method, const std::string& job_id) const;

  // An agent, before it has said a word: who shows no certificate, or a revoked one, is to hold no stream.
  absl::Status AskForCertificate(const grpc::ServerContextBase& context) const;
  // Serial number of the certificate that was shown; "" if none was, or no certificate is revoked here.
  std::string SerialOf(const grpc::ServerContextBase& context) const;
  // Names in the certificate that was shown; empty if none was.
  std::vector<std::string> CertificateNamesOf(const grpc::ServerContextBase& context) const;
  // The node that the certificate is for; "" as SerialOf(), and if it names none.
  std::string NodeOf(const grpc::ServerContextBase& context) const;
  // Of a stream that was let in: whether its certificate has been revoked since.
  absl::Status CheckNotRevoked(const std::string& serial) const;
  // An agent that says that it is `node`.
  absl::Status AdmitNode(const grpc::ServerContextBase& context, const std::string& node) const;

  bool open() const { return token_store_ == nullptr; }

 private:
  TokenStore* const token_store_;
  const SubmitterOf submitter_of_;
  RevokedCertificates* const revoked_;
};

}  // namespace fsdpd
