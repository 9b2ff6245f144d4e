#include "coordinator/web/web_routes.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <utility>

#include "base/lookup.h"
#include "base/net/address.h"
#include "coordinator/web/file_texts.h"

namespace fsdpd {
namespace {

constexpr std::pair<absl::string_view, const char*> kTypes[] = {{".js", "text/javascript; charset=utf-8"},
                                                                {".css", "text/css; charset=utf-8"},
                                                                {".svg", "image/svg+xml"}};

bool NamesThisMachine(const std::string& host) {
  absl::StatusOr<HostPort> address = ParseHostPort(host);
  if (!address.ok()) address = ParseHostPort(absl::StrCat(host, ":80"));
  return address.ok() && IsLoopback(*address);
}

}  // namespace

HttpResponse WebRoutes::Answer(const HttpRequest& request, const std::string& from) const {
  if (open_ && !NamesThisMachine(request.host))
    return {421, "text/plain", "host: without TLS only localhost and loopback addresses are served\n"};
  absl::string_view path = request.path;
  if (absl::ConsumePrefix(&path, "/api/")) return api_.Answer(path, request, from);
  for (const WebFile& file : WebFiles()) {
    if (file.path != path) continue;
    const absl::string_view suffix = path.substr(std::min(path.find('.'), path.size()));
    return {200, Lookup(kTypes, suffix, "text/html; charset=utf-8"), std::string(file.text)};
  }
  return {404, "text/plain", "not found; the web UI is at /\n"};
}

}  // namespace fsdpd
