#include "base/net/connect_error.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

namespace fsdpd {
namespace {

constexpr char kUnknownName[] = "unknown host name";

// The innermost error of a wrapped message; else empty.
absl::string_view LastError(absl::string_view message) {
  if (!absl::StrContains(message, "last error: ")) return "";
  return message.substr(message.rfind(": ") + 2);
}

std::string WordsOfClosed(OwnTls own) {
  switch (own) {
    case OwnTls::kNone:
      return "the server closed the connection; if it uses TLS, set --coordinator-ca [TLS_REQUIRED]";
    case OwnTls::kCertificate:
      return "the server closed the connection; --tls-cert may have expired, or may not be signed by a CA in "
             "the server's --tls-client-ca [CONNECTION_CLOSED]";
    case OwnTls::kTrust:
      break;
  }
  return "the server closed the connection [CONNECTION_CLOSED]";
}

}  // namespace

ConnectError ConnectErrorOf(absl::string_view message) {
  if (absl::StrContains(message, "certificate verify failed")) return ConnectError::kUntrustedCertificate;
  // While connecting; an error of an established stream lacks this text.
  const bool connecting = absl::StrContains(message, "failed to connect");
  if (absl::StrContains(message, "Socket closed") || absl::StrContains(message, "reset by peer"))
    return connecting ? ConnectError::kClosedOnConnect : ConnectError::kClosed;
  if (connecting && absl::StrContains(message, " alert ")) return ConnectError::kAlertOnConnect;
  return ConnectError::kOther;
}

std::string ConnectErrorText(absl::string_view message, OwnTls own) {
  const ConnectError error = ConnectErrorOf(message);
  const bool tls = own != OwnTls::kNone;
  if (tls && absl::StrContains(message, "wrong version number")) {
    return own == OwnTls::kTrust
               ? "the server does not use TLS; drop --coordinator-ca if that is intended [TLS_NOT_SUPPORTED]"
               : "the server does not use TLS; use --insecure instead of certificates if that is intended "
                 "[TLS_NOT_SUPPORTED]";
  }
  if (tls && error == ConnectError::kUntrustedCertificate)
    return "the server's certificate is not signed by a CA in --coordinator-ca, or has expired "
           "[UNTRUSTED_CERTIFICATE]";
  if (tls && absl::StrContains(message, "is not in peer certificate")) {
    return absl::StrCat("the server's certificate has another name (",
                        LastError(message).empty() ? message : LastError(message),
                        "): connect to a name that it has, or issue one with this name (deploy/certificates) "
                        "[SERVER_NAME_MISMATCH]");
  }
  if (error == ConnectError::kClosedOnConnect || (error == ConnectError::kClosed && !tls))
    return WordsOfClosed(own);
  if (absl::StrContains(message, "Handshake read failed"))
    return "the server accepts connections but does not answer; it is stopped, or is not a coordinator "
           "[NOT_A_COORDINATOR]";
  if (IsUnknownName(message)) return kUnknownName;
  if (absl::StrContains(message, "HTTP/2")) return "the server is not a coordinator [NOT_A_COORDINATOR]";
  const absl::string_view last = LastError(message);
  return std::string(last.empty() ? message : last);
}

bool IsUnknownName(absl::string_view message) { return absl::StartsWith(message, "DNS resolution failed"); }

bool NothingListens(absl::string_view words) {
  for (const char* said : {"Connection refused", kUnknownName, "unreachable", "No route to host"}) {
    if (absl::StrContains(words, said)) return true;
  }
  return false;
}

}  // namespace fsdpd
