// What is at which path: the page's own files, which are part of the program, and /api (web_api.h). Files are
// for everybody: what they show comes from /api, which asks who calls.
//
// Thread-safe.
#pragma once

#include <absl/strings/string_view.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "coordinator/web/http_message.h"
#include "coordinator/web/web_api.h"

namespace fsdpd {

// A file of the page, by its path: "/page.js".
struct WebFile {
  const char* path;
  const char* type;
  absl::string_view text;
};
const WebFile* FindWebFile(absl::string_view path);  // Null for none.

class WebRoutes {
 public:
  // `open`: nobody is asked who he is. Then requests count that name this machine as their host alone: or any
  // page of the world could have a browser here read all jobs, by a name of its own that leads to 127.0.0.1.
  WebRoutes(const std::shared_ptr<grpc::Channel>& channel, bool open) : api_(channel), open_(open) {}

  HttpAnswer Answer(const HttpRequest& request, const std::string& from) const;

 private:
  const WebApi api_;
  const bool open_;
};

}  // namespace fsdpd
