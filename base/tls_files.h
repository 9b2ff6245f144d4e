// What a process shows of itself and whom it trusts in TLS, as PEM files that an operator may replace at any
// time. One reading of them for all programs: a set that cannot work (a key of another certificate, one that
// has expired, half of a file) is refused as a whole, so that who rereads keeps the set before it.
//
// Files are replaced one after the other: a reader in between gets a refusal, and the new set at its next
// reading. Thread-safe: pure functions of the files.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <absl/time/time.h>

#include <optional>
#include <string>
#include <vector>

namespace fsdpd {

// Paths. Empty `certificate` and `key`: nothing is shown. All empty: no TLS.
struct TlsFiles {
  std::string trusted;      // Certificates of the authorities that vouch for the other side.
  std::string certificate;  // Own, followed by those between it and its authority.
  std::string key;          // Of `certificate`.

  bool given() const { return !trusted.empty(); }
};

// What the files hold; equal texts are the same set.
struct TlsIdentity {
  std::string trusted;  // PEM, as all three.
  std::string certificate;
  std::string key;
  std::vector<std::string> names;                         // CertificateNames() of `certificate`.
  std::vector<std::string> addresses;                     // IP addresses that it is for too.
  bool serves = false;                                    // Whether it may be shown by a server.
  absl::Time not_after = absl::InfiniteFuture();          // Of `certificate`.
  absl::Time trusted_not_after = absl::InfiniteFuture();  // Of the authority in `trusted` that expires first.

  bool SameAs(const TlsIdentity& other) const {
    return trusted == other.trusted && certificate == other.certificate && key == other.key;
  }
};

// INVALID_ARGUMENT or an error of the system, with the path. REQUIRES: files.given().
absl::StatusOr<TlsIdentity> ReadTlsFiles(const TlsFiles& files, absl::Time now);

// Whether the message of such an error is about the file at `path`.
bool IsFaultOf(const std::string& path, absl::string_view message);

// When the certificates in the files expire, also if they have. Nothing for a file that holds none.
struct TlsExpiry {
  std::optional<absl::Time> certificate;
  std::optional<absl::Time> trusted;  // The authority that expires first.
};
TlsExpiry ExpiryOf(const TlsFiles& files);

// A secret of one line (a token), without its end. FAILED_PRECONDITION where every user of the machine may
// read the file.
absl::StatusOr<std::string> ReadSecretLine(const std::string& path);

// The DNS names that the first certificate of a chain is for, in lower case; its common name where it has no
// DNS name at all. INVALID_ARGUMENT if it is not a certificate.
absl::StatusOr<std::vector<std::string>> CertificateNames(absl::string_view pem);

// The serial number of the first certificate of a chain, as `openssl x509 -serial` prints it: upper-case hex,
// two digits a byte. INVALID_ARGUMENT if it is not a certificate.
absl::StatusOr<std::string> CertificateSerial(absl::string_view pem);

// OK when one of `names` is `node`; PERMISSION_DENIED with both otherwise. No wildcards: a certificate is one
// node's.
absl::Status CheckNodeInNames(absl::string_view node, const std::vector<std::string>& names);

}  // namespace fsdpd
