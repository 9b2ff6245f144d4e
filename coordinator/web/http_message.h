// What of HTTP/1.1 the page needs: a request's head is read, and an answer written, of a connection that ends
// after it. Requests have no bodies.
//
// Thread-safe: pure functions.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

constexpr size_t kMaxHeadBytes = 16 << 10;  // Of which browsers' own headers are some two KiB.

struct HttpRequest {
  bool head = false;          // HEAD; otherwise GET.
  std::string path;           // "/api/GetJob", without its query.
  std::string query;          // The parameter q, decoded; empty where there is none.
  std::string host;           // Header Host, "" for none; as the next two.
  std::string authorization;  // "Bearer TOKEN"
  bool takes_gzip = false;    // Of Accept-Encoding.
};

struct HttpAnswer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
};

// The answer to what is none of them, as its error's message has it for people: INVALID_ARGUMENT is status
// 400, UNIMPLEMENTED 405. `head`: what came up to its empty line.
absl::StatusOr<HttpRequest> ParseHttpRequest(absl::string_view head);

// With headers that keep a browser to this server's own files, and keep others from showing them in theirs. A
// body of more than a packet travels as gzip to those who take it.
std::string RenderHttp(const HttpRequest& request, const HttpAnswer& answer);

}  // namespace fsdpd
