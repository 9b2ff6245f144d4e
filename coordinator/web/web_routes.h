// Routes of the web server: the static files of the web UI, which are compiled in, and /api (web_api.h).
// Static files are public; /api authenticates.
//
// Thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "coordinator/web/http_message.h"
#include "coordinator/web/web_api.h"

namespace fsdpd {

class WebRoutes {
 public:
  // `open`: requests are not authenticated. Then only requests whose Host names this machine are answered.
  // Otherwise a foreign web page could resolve its own name to 127.0.0.1 and read all jobs through a local
  // browser (DNS rebinding).
  WebRoutes(const std::shared_ptr<grpc::Channel>& channel, bool open) : api_(channel), open_(open) {}

  HttpResponse Answer(const HttpRequest& request, const std::string& from) const;

 private:
  const WebApi api_;
  const bool open_;
};

}  // namespace fsdpd
