// Identifiers: random, short enough to type, safe in file names, metric labels and DNS.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// "tiny-llama-k3x9q2" from the job's name: the name plus six characters that tell two submits apart.
std::string NewJobId(absl::string_view job_name);

// 128 random bits in hex: for request ids and the like.
std::string NewToken();

// Characters of a request id at most.
constexpr size_t kMaxRequestId = 64;

// A DNS label: lower-case letters, digits and '-', starts with a letter, ends with a letter or digit, 1–40
// characters (a job id stays below 63).
absl::Status CheckName(absl::string_view name);

// A node's name as Kubernetes spells it: an RFC 1123 subdomain. Labels of 1–63 lower-case letters, digits and
// '-', which start and end with a letter or a digit, joined by dots; 253 characters at most. What tells nodes
// apart is this one spelling, so capitals are refused: a name that comes from a host is put into it first.
absl::Status CheckNodeName(absl::string_view name);

// The node's name of a host's, as a kubelet makes it: host names have capitals at will and mean the same.
std::string NodeNameOf(absl::string_view host_name);

}  // namespace fsdpd
