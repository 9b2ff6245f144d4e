// HTTP server of the web UI. Each request is served by its own thread: over HTTPS with the coordinator's
// certificate (tls_port.h), reread for each connection, or in plaintext on loopback only. The server bounds
// time and connections: a request must be complete within head_time, and its response within exchange_time.
// At max_exchanges the oldest connection without a complete request is closed; if all have one, a new client
// gets 503.
//
// Thread-safe. `answer` is called on many threads.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "base/net/listener.h"
#include "base/unique_fd.h"
#include "coordinator/access/tls_port.h"
#include "coordinator/web/http_message.h"
#include "coordinator/web/server_tls.h"

namespace fsdpd {

struct WebOptions {
  std::string listen;             // HOST:PORT; port 0 picks one.
  std::shared_ptr<TlsPort> port;  // nullptr for plaintext.
  // Tests use shorter times.
  absl::Duration head_time = absl::Seconds(10);
  absl::Duration exchange_time = absl::Seconds(60);
  size_t max_exchanges = 64;
};

class WebServer {
 public:
  using Answer = std::function<HttpResponse(const HttpRequest& request, const std::string& from)>;

  // INVALID_ARGUMENT for plaintext on an address that is not loopback, UNAVAILABLE if the address cannot be
  // bound.
  static absl::StatusOr<std::unique_ptr<WebServer>> Start(const WebOptions& options, Answer answer);
  ~WebServer();  // Closes open connections.

  std::string url() const;  // "https://HOST:PORT/", with the actual port.
  int port() const { return listener_.address.port; }

 private:
  struct Exchange {
    UniqueFd fd;
    std::string from;
    bool rejected = false;               // Gets 503 for any request.
    bool ended = false;                  // Shut down but not joined: its descriptor is still open.
    std::atomic<bool> answering{false};  // The request is complete, the response is not yet written.
    std::atomic<bool> done{false};
    std::thread thread;
  };

  WebServer(const WebOptions& options, Listener listener, Answer answer);
  void Run();
  void Accept();
  // Shuts down the oldest connection without a complete request. Reap() joins it, because joining here could
  // wait for a response. False if all have complete requests.
  bool EndIdle();
  bool EnsureCapacity();  // Ensures capacity for one more; false as for EndIdle().
  void Serve(Exchange* exchange) const;
  void Reap();
  void End(std::list<Exchange>::iterator exchange);
  std::string RespondTo(const std::string& head, const std::string& from) const;

  const WebOptions options_;
  const Listener listener_;
  const UniqueFd wake_;
  const Answer answer_;
  const std::unique_ptr<ServerTls> tls_;
  std::atomic<bool> stopping_{false};
  std::list<Exchange> exchanges_;  // Oldest first; used only by thread_.
  bool starved_ = false;           // The last accept failed for lack of descriptors; used only by thread_.
  std::thread thread_;             // Last: uses all of the above.
};

}  // namespace fsdpd
