#include "base/connect_fault.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

namespace fsdpd {
namespace {

constexpr char kUnknownName[] = "the host's name is unknown";

// Where it was wrapped; else empty.
absl::string_view LastError(absl::string_view message) {
  if (!absl::StrContains(message, "last error: ")) return "";
  return message.substr(message.rfind(": ") + 2);
}

std::string WordsOfClosed(OwnTls own) {
  switch (own) {
    case OwnTls::kNone:
      return "it ends the connection; one with TLS does so until --coordinator-ca or FSDPD_COORDINATOR_CA is "
             "set";
    case OwnTls::kCertificate:
      return "it ends the connection; one does so where --tls-cert is of no authority in its "
             "--tls-client-ca, "
             "or not valid now";
    case OwnTls::kTrust:
      break;
  }
  return "it ends the connection";
}

}  // namespace

std::string WordsOfConnectFault(absl::string_view message, OwnTls own) {
  const bool tls = own != OwnTls::kNone;
  if (tls && absl::StrContains(message, "wrong version number")) {
    return own == OwnTls::kTrust ? "it speaks no TLS; leave --coordinator-ca out, if that is meant"
                                 : "it speaks no TLS; --insecure instead of certificates, if that is meant";
  }
  if (tls && absl::StrContains(message, "certificate verify failed"))
    return "its certificate is of no authority in --coordinator-ca, or not valid now";
  if (tls && absl::StrContains(message, "is not in peer certificate")) {
    return absl::StrCat("its certificate has another name (",
                        LastError(message).empty() ? message : LastError(message),
                        "): dial one that it has, or make it one with this name too (deploy/certificates)");
  }
  // While the connection is made; a stream that breaks says so without that.
  const bool connecting = absl::StrContains(message, "failed to connect");
  const bool closed =
      absl::StrContains(message, "Socket closed") || absl::StrContains(message, "reset by peer");
  if (closed && (connecting || !tls)) return WordsOfClosed(own);
  if (absl::StrContains(message, "Handshake read failed"))
    return "it takes the connection and does not answer: it stands still, or is no coordinator";
  if (IsUnknownName(message)) return kUnknownName;
  if (absl::StrContains(message, "HTTP/2")) return "what listens there is no coordinator";
  const absl::string_view last = LastError(message);
  return std::string(last.empty() ? message : last);
}

bool IsUnknownName(absl::string_view message) { return absl::StartsWith(message, "DNS resolution failed"); }

bool NobodyIsThere(absl::string_view words) {
  for (const char* said : {"Connection refused", kUnknownName, "unreachable", "No route to host"}) {
    if (absl::StrContains(words, said)) return true;
  }
  return false;
}

}  // namespace fsdpd
