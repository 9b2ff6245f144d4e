#include "base/net/tls_files.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/log.h"

namespace fsdpd {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;  // The CA bundle of Debian has 220 KiB.

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

absl::Status Wrong(absl::string_view path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", why, " [INVALID_CERTIFICATE]"));
}

absl::StatusOr<std::string> ReadBounded(int fd, const std::string& path) {
  std::string text;
  char part[16 << 10];
  for (;;) {
    const ssize_t got = read(fd, part, sizeof part);
    if (got == 0) return text;
    if (got < 0) return ErrnoStatus(path);
    text.append(part, got);
    if (static_cast<int64_t>(text.size()) > kMaxFileBytes)
      return Wrong(path, "is too large (want at most 1 MiB)");
  }
}

absl::StatusOr<std::string> ReadWhole(const std::string& path, bool secret) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(path);
  struct stat stat = {};
  absl::StatusOr<std::string> text = absl::UnknownError("");
  if (fstat(fd, &stat) != 0) {
    text = ErrnoStatus(path);
  } else if (secret && (stat.st_mode & S_IRWXO) != 0) {
    text = absl::FailedPreconditionError(
        absl::StrCat(path,
                     ": contains a secret but every user of this machine can read it; run chmod 600 "
                     "(or 640) [INSECURE_SECRET_FILE]"));
  } else {
    text = ReadBounded(fd, path);
  }
  close(fd);
  return text;
}

Bio BioOf(absl::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free);
}

// Clears the error queue of OpenSSL: otherwise the next caller on this thread, gRPC, would see it.
X509Ptr NextCertificate(BIO* bio) {
  X509Ptr certificate(PEM_read_bio_X509(bio, nullptr, nullptr, nullptr), X509_free);
  ERR_clear_error();
  return certificate;
}

X509Ptr FirstCertificate(absl::string_view pem) { return NextCertificate(BioOf(pem).get()); }

// Without this callback, OpenSSL would prompt on the terminal for an encrypted key.
int NoPassword(char*, int, int, void*) { return 0; }

KeyPtr KeyOf(absl::string_view pem) {
  KeyPtr key(PEM_read_bio_PrivateKey(BioOf(pem).get(), nullptr, NoPassword, nullptr), EVP_PKEY_free);
  ERR_clear_error();
  return key;
}

absl::Time TimeOf(const ASN1_TIME* when) {
  tm parts = {};
  if (ASN1_TIME_to_tm(when, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::string DateText(absl::Time when) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", when, absl::UTCTimeZone());
}

std::vector<std::string> DnsNames(X509* certificate) {
  std::vector<std::string> names;
  auto* all =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(all); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(all, i);
    if (name->type != GEN_DNS) continue;
    const auto* text = reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName));
    names.push_back(absl::AsciiStrToLower(
        absl::string_view(text, static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)))));
  }
  GENERAL_NAMES_free(all);
  return names;
}

std::vector<std::string> Addresses(X509* certificate) {
  std::vector<std::string> addresses;
  auto* all =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(all); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(all, i);
    if (name->type != GEN_IPADD) continue;
    char text[INET6_ADDRSTRLEN] = "";
    const int bytes = ASN1_STRING_length(name->d.iPAddress);
    if (bytes != 4 && bytes != 16) continue;  // The certificate may contain invalid data.
    const int family = bytes == 4 ? AF_INET : AF_INET6;
    if (inet_ntop(family, ASN1_STRING_get0_data(name->d.iPAddress), text, sizeof(text)) != nullptr)
      addresses.emplace_back(text);
  }
  GENERAL_NAMES_free(all);
  return addresses;
}

std::string CommonName(X509* certificate) {
  const X509_NAME* subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0) return "";
  const ASN1_STRING* text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
  return absl::AsciiStrToLower(absl::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                                                 static_cast<size_t>(ASN1_STRING_length(text))));
}

// The expiry of each certificate, sorted.
std::vector<absl::Time> Expiries(absl::string_view pem) {
  std::vector<absl::Time> expiries;
  const Bio bio = BioOf(pem);
  while (const X509Ptr each = NextCertificate(bio.get()))
    expiries.push_back(TimeOf(X509_get0_notAfter(each.get())));
  std::sort(expiries.begin(), expiries.end());
  return expiries;
}

absl::Status CheckDates(X509* certificate, absl::Time now, const std::string& path) {
  const absl::Time from = TimeOf(X509_get0_notBefore(certificate));
  const absl::Time until = TimeOf(X509_get0_notAfter(certificate));
  if (now > until) return Wrong(path, absl::StrCat("the certificate has expired, on ", DateText(until)));
  if (now < from)
    return Wrong(path, absl::StrCat("the certificate is valid only from ", DateText(from), " on"));
  return absl::OkStatus();
}

absl::Status ReadTrusted(const std::string& path, absl::Time now, TlsIdentity* identity) {
  FSDPD_ASSIGN_OR_RETURN(identity->trusted, ReadWhole(path, /*secret=*/false));
  const std::vector<absl::Time> expiries = Expiries(identity->trusted);
  if (expiries.empty()) return Wrong(path, "contains no PEM certificate");
  if (now > expiries.back()) {
    return Wrong(path, absl::StrCat(expiries.size() == 1 ? "the CA certificate has expired, on "
                                                         : "all CA certificates have expired, the last on ",
                                    DateText(expiries.back())));
  }
  const auto expired = std::lower_bound(expiries.begin(), expiries.end(), now) - expiries.begin();
  if (expired > 0) {
    identity->warning = absl::StrCat(path, ": ", expired, " of ", expiries.size(),
                                     " CA certificates expired, the first on ", DateText(expiries.front()));
  }
  identity->trusted_not_after = expiries.front();
  return absl::OkStatus();
}

absl::Status ReadOwn(const TlsFiles& files, absl::Time now, TlsIdentity* identity) {
  FSDPD_ASSIGN_OR_RETURN(identity->certificate, ReadWhole(files.certificate, /*secret=*/false));
  FSDPD_ASSIGN_OR_RETURN(identity->key, ReadWhole(files.key, /*secret=*/true));
  const X509Ptr own = FirstCertificate(identity->certificate);
  if (own == nullptr) return Wrong(files.certificate, "contains no PEM certificate");
  const KeyPtr secret = KeyOf(identity->key);
  if (secret == nullptr) return Wrong(files.key, "contains no PEM private key without a password");
  const bool belongs = X509_check_private_key(own.get(), secret.get()) == 1;
  ERR_clear_error();
  if (!belongs)
    return Wrong(files.key, absl::StrCat("is not the key of the certificate in ", files.certificate));
  FSDPD_RETURN_IF_ERROR(CheckDates(own.get(), now, files.certificate));
  identity->not_after = TimeOf(X509_get0_notAfter(own.get()));
  identity->names = *CertificateNames(identity->certificate);
  identity->addresses = Addresses(own.get());
  identity->serves = X509_check_purpose(own.get(), X509_PURPOSE_SSL_SERVER, /*ca=*/0) == 1;
  ERR_clear_error();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TlsIdentity> ReadTlsFiles(const TlsFiles& files, absl::Time now) {
  TlsIdentity identity;
  FSDPD_RETURN_IF_ERROR(ReadTrusted(files.trusted, now, &identity));
  if (!files.certificate.empty()) FSDPD_RETURN_IF_ERROR(ReadOwn(files, now, &identity));
  return identity;
}

void LogTlsWarning(const TlsIdentity& read, std::string* last) {
  if (std::exchange(*last, read.warning) != read.warning && !read.warning.empty())
    LogWarning("TLS files contain expired CA certificates warning=%s", read.warning);
}

bool IsErrorOfFile(const std::string& path, absl::string_view message) {
  return absl::StartsWith(message, absl::StrCat(path, ": "));
}

TlsExpiry ExpiryOf(const TlsFiles& files) {
  TlsExpiry expiry;
  if (const auto pem = ReadWhole(files.certificate, /*secret=*/false); pem.ok()) {
    if (const X509Ptr own = FirstCertificate(*pem))
      expiry.certificate = TimeOf(X509_get0_notAfter(own.get()));
  }
  if (const auto pem = ReadWhole(files.trusted, /*secret=*/false); pem.ok()) {
    const std::vector<absl::Time> expiries = Expiries(*pem);
    if (!expiries.empty()) expiry.trusted = expiries.front();
  }
  return expiry;
}

absl::StatusOr<std::string> ReadSecretLine(const std::string& path) {
  FSDPD_ASSIGN_OR_RETURN(const std::string text, ReadWhole(path, /*secret=*/true));
  const std::string line(absl::StripAsciiWhitespace(text));
  if (line.empty()) return Wrong(path, "is empty");
  if (!std::all_of(line.begin(), line.end(), absl::ascii_isgraph)) {
    return Wrong(path, "must contain one line without spaces");
  }
  return line;
}

absl::StatusOr<std::vector<std::string>> CertificateNames(absl::string_view pem) {
  const X509Ptr certificate = FirstCertificate(pem);
  if (certificate == nullptr) return absl::InvalidArgumentError("is not a PEM certificate");
  std::vector<std::string> names = DnsNames(certificate.get());
  if (!names.empty()) return names;
  if (std::string name = CommonName(certificate.get()); !name.empty()) names.push_back(std::move(name));
  return names;
}

absl::StatusOr<std::string> CertificateSerial(absl::string_view pem) {
  const X509Ptr certificate = FirstCertificate(pem);
  if (certificate == nullptr) return absl::InvalidArgumentError("is not a PEM certificate");
  const std::unique_ptr<BIGNUM, void (*)(BIGNUM*)> number(
      ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate.get()), nullptr), BN_free);
  const std::unique_ptr<char, void (*)(char*)> hex(BN_bn2hex(number.get()),
                                                   [](char* text) { OPENSSL_free(text); });
  return std::string(BN_is_zero(number.get()) ? "00" : hex.get());
}

absl::Status CheckNodeInNames(absl::string_view node, const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), node) != names.end()) return absl::OkStatus();
  const std::string is_for =
      names.empty() ? "no name: neither a DNS name nor a common name" : absl::StrJoin(names, ", ");
  return absl::PermissionDeniedError(
      absl::StrCat("certificate is not for node '", node, "' (it is for ", is_for, ")"));
}

}  // namespace fsdpd
