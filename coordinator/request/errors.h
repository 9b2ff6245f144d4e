// Construction of API errors, and their conversion to gRPC: one place for both.
//
// A refusal is an absl::Status with google.rpc details as payloads, keyed by their type URL. ToGrpc() maps
// the code by one table and the payloads to the details of a grpc::Status. Every grpc::Status made here has
// an ErrorInfo (domain "fsdpd") with a stable reason; UNAVAILABLE also has a RetryInfo. Code below the
// services returns plain absl::Status values; those get the reason of their code.
//
// Pure.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>
#include <grpcpp/support/status.h>

#include <map>
#include <string>

#include "base/spec_text/violation.h"

namespace fsdpd {

constexpr char kErrorDomain[] = "fsdpd";

// `reason`: UPPER_SNAKE_CASE, stable, for programs, like `metadata`. `message`: for users.
absl::Status Refusal(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                     const std::map<std::string, std::string>& metadata = {});

// INVALID_ARGUMENT with the errors in `violations`, as documented in coordinator.proto (without warnings and
// adjustments). The size is bounded for any number of errors: the message has the first one, the details as
// many as fit.
absl::Status BadSpec(const Violations& violations);

// INVALID_ARGUMENT for one field of a request other than the spec.
absl::Status BadField(absl::string_view field, absl::string_view reason);

// FAILED_PRECONDITION: the state of `subject` ("jobs/x") does not allow the call.
absl::Status WrongState(absl::string_view reason, absl::string_view subject, absl::string_view message);

// INVALID_ARGUMENT for text that cannot be the id of a job.
absl::Status CheckJobId(const std::string& id);

absl::Status JobNotFound(absl::string_view id);
absl::Status NodeNotFound(absl::string_view name);
// `what`: what a job without a launch lacks, such as "logs".
absl::Status JobNotLaunched(absl::string_view job, absl::string_view what, absl::string_view reason);
// `attempts`: number of attempts that the job has had.
absl::Status AttemptNotFound(absl::string_view job, int attempts);

grpc::Status ToGrpc(const absl::Status& status);

}  // namespace fsdpd
