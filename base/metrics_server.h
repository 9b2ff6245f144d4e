// Serves one page of text, /metrics, over HTTP/1.1. It owns who is served how long: a connection has
// kExchangeTime from its first to its last byte, and when kMaxConnections are open the oldest makes room, so
// that neither slow nor many peers keep a scrape waiting.
//
// One thread runs a poll loop over all connections; `page` is called on it and must not wait.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "base/address.h"
#include "base/unique_fd.h"

namespace fsdpd {

class MetricsServer {
 public:
  using Page = std::function<std::string()>;

  // `listen` is HOST:PORT; port 0 picks one. INVALID_ARGUMENT for what is none, else UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& listen, Page page);
  ~MetricsServer();

  const std::string& endpoint() const { return endpoint_; }  // HOST:PORT with the port that was picked.

 private:
  struct Connection {
    UniqueFd fd;
    absl::Time until;
    std::string request;   // What has come of its head.
    std::string response;  // Set once the request is complete.
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
  std::list<Connection> connections_;  // The oldest first; the thread's own.
  bool starved_ = false;  // The last accept failed for want of descriptors or memory; the thread's own.
  std::thread thread_;    // Last: it uses all of the above.
};

}  // namespace fsdpd
