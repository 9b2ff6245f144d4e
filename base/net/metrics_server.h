// HTTP/1.1 server of one text page, /metrics. It limits connections: each has kExchangeTime from its first to
// its last byte, and beyond kMaxConnections the oldest is closed, so that neither slow nor many clients block
// a scrape.
//
// One thread runs a poll loop over all connections; `page` is called on it and must not block.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "base/net/address.h"
#include "base/unique_fd.h"

namespace fsdpd {

class MetricsServer {
 public:
  using Page = std::function<std::string()>;

  // `listen` is HOST:PORT; port 0 picks a port. INVALID_ARGUMENT if it does not parse, else UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& listen, Page page);
  ~MetricsServer();

  const std::string& endpoint() const { return endpoint_; }  // HOST:PORT with the actual port.

 private:
  struct Connection {
    UniqueFd fd;
    absl::Time until;
    std::string request;   // Received part of its header.
    std::string response;  // Set when the request is complete.
    size_t sent = 0;
    bool answered() const { return !response.empty() && sent == response.size(); }
  };

  MetricsServer(UniqueFd listener, std::string endpoint, Page page);
  void Run();
  void Accept();
  bool Serve(Connection* connection);
  bool Read(Connection* connection);

  const UniqueFd listener_;
  const std::string endpoint_;
  const Page page_;
  const UniqueFd wake_;
  std::atomic<bool> stopping_{false};
  std::list<Connection> connections_;  // Oldest first. Used on the thread only.
  // The last accept failed for lack of descriptors or memory. Used on the thread only.
  bool starved_ = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdpd
