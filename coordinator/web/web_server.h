// Listens for browsers, and serves each request by a thread of its own: HTTPS with the certificate that the
// coordinator shows to everybody (tls_port.h), read again at each connection; plaintext for this machine
// alone. It owns who is served how long: a request has head_time to come whole, and exchange_time with its
// answer; when max_exchanges are under way the oldest that waits for no answer is ended, and where all do,
// who comes is told to come again (503).
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

#include "base/listener.h"
#include "coordinator/tls_port.h"
#include "coordinator/web/http_message.h"
#include "coordinator/web/server_tls.h"

namespace fsdpd {

struct WebOptions {
  std::string listen;             // HOST:PORT; port 0 picks one.
  std::shared_ptr<TlsPort> port;  // Null for plaintext.
  // Shorter in tests.
  absl::Duration head_time = absl::Seconds(10);
  absl::Duration exchange_time = absl::Seconds(60);
  size_t max_exchanges = 64;
};

class WebServer {
 public:
  using Answer = std::function<HttpAnswer(const HttpRequest& request, const std::string& from)>;

  // INVALID_ARGUMENT for plaintext on an address that others reach, UNAVAILABLE for one that cannot be had.
  static absl::StatusOr<std::unique_ptr<WebServer>> Start(const WebOptions& options, Answer answer);
  ~WebServer();  // Ends what is under way.

  std::string url() const;  // "https://HOST:PORT/", with the port that was picked.
  int port() const { return listener_.address.port; }

 private:
  struct Exchange {
    int fd = -1;
    std::string from;
    bool turned_away = false;          // Whatever it asks for.
    bool ended = false;                // Shut down, and not joined yet: its descriptor is still open.
    std::atomic<bool> awaited{false};  // Its request is whole, and the answer is not written.
    std::atomic<bool> done{false};
    std::thread thread;
  };

  WebServer(const WebOptions& options, Listener listener, Answer answer);
  void Run();
  void Accept();
  // Shuts the oldest down that waits for no answer, for Reap() to join: it may be about to get one. False
  // where all that are served wait for answers.
  bool EndIdle();
  bool MakeRoom();  // Likewise.
  void Serve(Exchange* exchange) const;
  void Reap();
  void End(std::list<Exchange>::iterator exchange);
  std::string AnswerTo(const std::string& head, const std::string& from) const;

  const WebOptions options_;
  const Listener listener_;
  const int wake_;
  const Answer answer_;
  const std::unique_ptr<ServerTls> tls_;
  std::atomic<bool> stopping_{false};
  std::list<Exchange> exchanges_;  // The oldest first; the thread's own.
  bool starved_ = false;           // The last accept failed for want of descriptors; the thread's own.
  std::thread thread_;             // Last: it uses all of the above.
};

}  // namespace fsdpd
