// Identifiers: random, short enough to type, safe in file names, metric labels and DNS names.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// "tiny-llama-k3x9q2": the name of the job plus six random characters that distinguish submits.
std::string NewJobId(absl::string_view job_name);

// 128 random bits in hex, for example for request ids.
std::string NewToken();

// Maximum length of a request id.
constexpr size_t kMaxRequestId = 64;

// Checks a DNS label: lower-case letters, digits and '-', starts with a letter, ends with a letter or digit,
// 1-40 characters (so that a job id stays below 63).
absl::Status CheckName(absl::string_view name);

// Checks a node name, an RFC 1123 subdomain as in Kubernetes: labels of 1-63 lower-case letters, digits and
// '-', which start and end with a letter or digit, joined by dots; at most 253 characters. Names are compared
// as text, so upper case is rejected; convert host names with NodeNameOf().
absl::Status CheckNodeName(absl::string_view name);

// The node name for a host name, converted like a kubelet does: host names are case-insensitive.
std::string NodeNameOf(absl::string_view host_name);

}  // namespace fsdpd
