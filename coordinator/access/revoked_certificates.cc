#include "coordinator/access/revoked_certificates.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxSerialDigits = 40;  // RFC 5280: 20 bytes.

}  // namespace

absl::StatusOr<Serials> ParseSerials(absl::string_view text) {
  Serials serials;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    absl::ConsumePrefix(&line, "serial=");
    std::string serial = absl::AsciiStrToUpper(absl::StrReplaceAll(line, {{":", ""}}));
    serial.erase(0, std::min(serial.find_first_not_of('0'), serial.size()));
    const bool is_hex = std::all_of(serial.begin(), serial.end(), absl::ascii_isxdigit);
    if (serial.empty() || serial.size() > kMaxSerialDigits || !is_hex) {
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", number,
          ": invalid serial number; write the output of `openssl x509 -noout -serial -in FILE`"));
    }
    if (serial.size() % 2 != 0) serial.insert(0, 1, '0');
    serials.insert(std::move(serial));
  }
  return serials;
}

RevokedCertificates::RevokedCertificates(const std::string& path, Clock* clock)
    : file_("revoked certificates", path, clock, [this](const std::string& text) { return Take(text); }) {}

absl::StatusOr<std::unique_ptr<RevokedCertificates>> RevokedCertificates::Open(const std::string& path,
                                                                               Clock* clock) {
  std::unique_ptr<RevokedCertificates> opened(new RevokedCertificates(path, clock));
  FSDPD_RETURN_IF_ERROR(opened->file_.Reread());
  return opened;
}

absl::Status RevokedCertificates::Take(const std::string& text) {
  FSDPD_ASSIGN_OR_RETURN(Serials serials, ParseSerials(text));
  MutexLock lock(&mutex_);
  if (text.empty())
    return absl::InvalidArgumentError("is empty; write a comment (#) if no certificate is revoked");
  serials_ = std::move(serials);
  return absl::OkStatus();
}

bool RevokedCertificates::Has(const std::string& serial) {
  file_.Refresh();
  MutexLock lock(&mutex_);
  return serials_.count(serial) > 0;
}

size_t RevokedCertificates::size() {
  file_.Refresh();
  MutexLock lock(&mutex_);
  return serials_.size();
}

}  // namespace fsdpd
