// Parser and writer for the subset of HTTP/1.1 that the web UI needs: one request without a body per
// connection.
//
// Pure.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

constexpr size_t kMaxHeadBytes = 16 << 10;  // Browsers' own headers have about 2 KiB.

struct HttpRequest {
  bool head = false;          // true for HEAD, false for GET.
  std::string path;           // "/api/GetJob", without its query.
  std::string query;          // The decoded parameter q; empty if missing.
  std::string host;           // Header Host; this and the next two are "" if missing.
  std::string authorization;  // "Bearer TOKEN"
  bool takes_gzip = false;    // From Accept-Encoding.
};

struct HttpResponse {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
};

// INVALID_ARGUMENT becomes status 400, UNIMPLEMENTED 405, with the error's message as the body. `head`: the
// request up to its empty line.
absl::StatusOr<HttpRequest> ParseHttpRequest(absl::string_view head);

// Adds headers that restrict the browser to this server's files and forbid embedding in frames. A body larger
// than one packet is compressed if the client accepts gzip.
std::string RenderHttp(const HttpRequest& request, const HttpResponse& answer);

}  // namespace fsdpd
