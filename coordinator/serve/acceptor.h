// Listening socket of a gRPC server, with an accept loop of its own. gRPC 1.51 stops listening for good after
// an accept() that found no free file descriptor; this loop resumes when descriptors are free again. It
// closes new connections while fewer than kReservedFds are free, so that clients get an error immediately,
// and the store, the log and /metrics can still open files.
//
// Order: Open(), Start() once the server has started, Stop() before the server's Shutdown().
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/net/address.h"
#include "base/net/listener.h"
#include "base/repeats.h"
#include "base/unique_fd.h"

namespace fsdpd {

constexpr int kReservedFds = 32;  // At most an eighth of the limit.

class Acceptor {
 public:
  using Sink = grpc::experimental::ExternalConnectionAcceptor;

  // Port 0 picks a free port. Clients may connect from now on; their connections are accepted after Start().
  static absl::StatusOr<std::unique_ptr<Acceptor>> Open(const HostPort& address);
  ~Acceptor() { Stop(); }

  int port() const { return listeners_[0].address.port; }
  void Start(std::unique_ptr<Sink> sink);  // From the server's builder.
  void Stop();                             // Closes the port. Idempotent.

 private:
  explicit Acceptor(std::vector<Listener> listeners);
  void Run();
  void AcceptFrom(int listener);

  std::vector<Listener> listeners_;
  const UniqueFd wake_;
  std::unique_ptr<Sink> sink_;
  std::atomic<bool> stopping_{false};
  bool starved_ = false;  // The last accept() found no descriptor or memory. Used only by the thread.
  Repeats repeats_;
  std::thread thread_;
};

}  // namespace fsdpd
