// TLS certificates and keys in PEM files, which an operator may replace at any time. All programs read them
// through this file. A set that cannot work (a key of another certificate, an expired certificate, CAs that
// all expired, a truncated file) is rejected as a whole, so that a program that rereads its files keeps the
// previous set.
//
// Files are replaced one after the other: a reader in between gets an error, and the new set at the next
// attempt. Thread-safe.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <absl/time/time.h>

#include <optional>
#include <string>
#include <vector>

namespace fsdpd {

// Paths. Empty `certificate` and `key`: no certificate is presented. All empty: no TLS.
struct TlsFiles {
  std::string trusted;      // CA certificates to verify the other side.
  std::string certificate;  // Own certificate, followed by intermediate ones.
  std::string key;          // Of `certificate`.

  bool given() const { return !trusted.empty(); }
};

// Contents of the files.
struct TlsIdentity {
  std::string trusted;  // PEM, like the next two.
  std::string certificate;
  std::string key;
  std::vector<std::string> names;                         // CertificateNames() of `certificate`.
  std::vector<std::string> addresses;                     // IP addresses in the certificate.
  bool serves = false;                                    // Whether a server may use it.
  absl::Time not_after = absl::InfiniteFuture();          // Of `certificate`.
  absl::Time trusted_not_after = absl::InfiniteFuture();  // Earliest expiry in `trusted`.
  std::string warning;  // Some, not all, CAs in `trusted` expired. Empty: none.

  bool SameAs(const TlsIdentity& other) const {
    return trusted == other.trusted && certificate == other.certificate && key == other.key;
  }
};

// INVALID_ARGUMENT or a system error, with the path. REQUIRES: files.given().
absl::StatusOr<TlsIdentity> ReadTlsFiles(const TlsFiles& files, absl::Time now);

// Logs `read.warning` if it differs from `*last`, which it updates.
void LogTlsWarning(const TlsIdentity& read, std::string* last);

// Whether the message of such an error is about the file `path`.
bool IsErrorOfFile(const std::string& path, absl::string_view message);

// Expiry of the certificates in the files, including expired ones. Empty for a file without certificates.
struct TlsExpiry {
  std::optional<absl::Time> certificate;
  std::optional<absl::Time> trusted;  // The CA that expires first.
};
TlsExpiry ExpiryOf(const TlsFiles& files);

// Reads a secret of one line (a token), without its line end. FAILED_PRECONDITION if every user of the
// machine may read the file.
absl::StatusOr<std::string> ReadSecretLine(const std::string& path);

// DNS names of the first certificate of a chain, in lower case; its common name if it has no DNS names.
// INVALID_ARGUMENT if it is not a certificate.
absl::StatusOr<std::vector<std::string>> CertificateNames(absl::string_view pem);

// Serial number of the first certificate of a chain, as `openssl x509 -serial` prints it: upper-case hex, two
// digits per byte. INVALID_ARGUMENT if it is not a certificate.
absl::StatusOr<std::string> CertificateSerial(absl::string_view pem);

// OK if `names` contains `node`; otherwise PERMISSION_DENIED with both. Wildcards are not supported: a
// certificate belongs to one node.
absl::Status CheckNodeInNames(absl::string_view node, const std::vector<std::string>& names);

}  // namespace fsdpd
