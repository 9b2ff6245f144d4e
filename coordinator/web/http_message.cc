#include "coordinator/web/http_message.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <zlib.h>

#include <optional>
#include <vector>

#include "base/lookup.h"

namespace fsdpd {
namespace {

constexpr size_t kGzipFrom = 1400;
// 'self' only: no inline scripts or styles, no other servers, no embedding.
constexpr char kHeaders[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n"
    "Vary: Accept-Encoding\r\n"
    "Connection: close\r\n";

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// nullopt for a '%' without two hexadecimal digits.
std::optional<std::string> Decoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

absl::Status ReadTarget(absl::string_view target, HttpRequest* request) {
  if (!absl::StartsWith(target, "/")) return absl::InvalidArgumentError("request target: must start with /");
  const size_t question_mark = target.find('?');
  request->path = std::string(target.substr(0, question_mark));
  if (question_mark == absl::string_view::npos) return absl::OkStatus();
  for (const absl::string_view parameter : absl::StrSplit(target.substr(question_mark + 1), '&')) {
    if (!absl::StartsWith(parameter, "q=")) continue;
    std::optional<std::string> query = Decoded(parameter.substr(2));
    if (!query.has_value())
      return absl::InvalidArgumentError("q: % must be followed by two hexadecimal digits");
    request->query = *std::move(query);
  }
  return absl::OkStatus();
}

void ReadHeader(absl::string_view line, HttpRequest* request) {
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos) return;
  const std::string name = absl::AsciiStrToLower(line.substr(0, colon));
  const absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
  if (name == "host") request->host = std::string(value);
  if (name == "authorization") request->authorization = std::string(value);
  if (name == "accept-encoding") request->takes_gzip = absl::StrContains(value, "gzip");
}

constexpr std::pair<int, const char*> kReasonPhrases[] = {{200, "OK"},
                                                          {400, "Bad Request"},
                                                          {401, "Unauthorized"},
                                                          {403, "Forbidden"},
                                                          {404, "Not Found"},
                                                          {405, "Method Not Allowed"},
                                                          {421, "Misdirected Request"},
                                                          {429, "Too Many Requests"},
                                                          {431, "Request Header Fields Too Large"},
                                                          {501, "Not Implemented"},
                                                          {503, "Service Unavailable"},
                                                          {504, "Gateway Timeout"}};

// nullopt if zlib is out of memory.
std::optional<std::string> Gzipped(const std::string& text) {
  constexpr int kGzipWindow = 15 + 16;  // 16 selects the gzip format.
  z_stream stream = {};
  if (deflateInit2(&stream, 1, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK) return std::nullopt;
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const bool done = deflate(&stream, Z_FINISH) == Z_STREAM_END;
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return done ? std::make_optional(packed) : std::nullopt;
}

}  // namespace

absl::StatusOr<HttpRequest> ParseHttpRequest(absl::string_view head) {
  const std::vector<absl::string_view> lines = absl::StrSplit(head, '\n');
  const std::vector<absl::string_view> first = absl::StrSplit(absl::StripAsciiWhitespace(lines[0]), ' ');
  if (first.size() != 3 || !absl::StartsWith(first[2], "HTTP/1."))
    return absl::InvalidArgumentError("not an HTTP/1 request");
  HttpRequest request;
  request.head = first[0] == "HEAD";
  if (!request.head && first[0] != "GET")
    return absl::UnimplementedError("method: only GET and HEAD are supported; use fsdpctl for changes");
  if (const absl::Status target = ReadTarget(first[1], &request); !target.ok()) return target;
  for (size_t i = 1; i < lines.size(); ++i) ReadHeader(lines[i], &request);
  return request;
}

std::string RenderHttp(const HttpRequest& request, const HttpResponse& answer) {
  std::optional<std::string> packed;
  if (request.takes_gzip && answer.body.size() > kGzipFrom) packed = Gzipped(answer.body);
  const std::string& body = packed.has_value() ? *packed : answer.body;
  return absl::StrCat("HTTP/1.1 ", answer.status, " ", Lookup(kReasonPhrases, answer.status, "Error"), "\r\n",
                      kHeaders, answer.status == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
                      answer.status == 405 ? "Allow: GET, HEAD\r\n" : "",
                      answer.status == 503 ? "Retry-After: 2\r\n" : "",
                      packed.has_value() ? "Content-Encoding: gzip\r\n" : "", "Content-Type: ", answer.type,
                      "\r\nContent-Length: ", body.size(), "\r\n\r\n", request.head ? "" : body);
}

}  // namespace fsdpd
