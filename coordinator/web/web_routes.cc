#include "coordinator/web/web_routes.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include "base/net/address.h"
#include "coordinator/web/file_texts.h"

namespace fsdpd {
namespace {

constexpr char kHtml[] = "text/html; charset=utf-8";
constexpr char kScript[] = "text/javascript; charset=utf-8";

bool NamesThisMachine(const std::string& host) {
  absl::StatusOr<HostPort> address = ParseHostPort(host);
  if (!address.ok()) address = ParseHostPort(absl::StrCat(host, ":80"));
  return address.ok() && IsLoopback(*address);
}

}  // namespace

const WebFile* FindWebFile(absl::string_view path) {
  static const WebFile kFiles[] = {
      {"/", kHtml, kPageHtml},
      {"/page.css", "text/css; charset=utf-8", kPageCss},
      {"/icon.svg", "image/svg+xml", kIconSvg},
      {"/page.js", kScript, kPageJs},
      {"/chart.js", kScript, kChartJs},
      {"/steps.js", kScript, kStepsJs},
      {"/dom.js", kScript, kDomJs},
      {"/job.js", kScript, kJobJs},
      {"/jobs.js", kScript, kJobsJs},
      {"/nodes.js", kScript, kNodesJs},
      {"/numbers.js", kScript, kNumbersJs},
      {"/timeline.js", kScript, kTimelineJs},
  };
  for (const WebFile& file : kFiles) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

HttpResponse WebRoutes::Answer(const HttpRequest& request, const std::string& from) const {
  if (open_ && !NamesThisMachine(request.host))
    return {421, "text/plain", "host: without TLS only localhost and loopback addresses are served\n"};
  absl::string_view path = request.path;
  if (absl::ConsumePrefix(&path, "/api/")) return api_.Answer(path, request, from);
  const WebFile* file = FindWebFile(path);
  if (file == nullptr) return {404, "text/plain", "not found; the web UI is at /\n"};
  return {200, file->type, std::string(file->text)};
}

}  // namespace fsdpd
