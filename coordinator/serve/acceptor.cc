#include "coordinator/serve/acceptor.h"

#include <absl/time/clock.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"

namespace fsdpd {
namespace {

constexpr int kStarvedMs = 100;  // Retry interval of accept() after it found no descriptor.

// The options that gRPC sets on connections that it accepts itself.
void SetOptions(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kAgentLostAfterMs, sizeof kAgentLostAfterMs);
}

// The kernel gives the lowest free number, so a high number means that few are free.
bool IsReserved(int fd) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const rlim_t reserved = std::min<rlim_t>(kReservedFds, limit.rlim_cur / 8);
  return static_cast<rlim_t>(fd) >= limit.rlim_cur - reserved;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Open(const HostPort& address) {
  FSDPD_ASSIGN_OR_RETURN(std::vector<Listener> listeners, ListenOnAll(address, "calls"));
  return std::unique_ptr<Acceptor>(new Acceptor(std::move(listeners)));
}

Acceptor::Acceptor(std::vector<Listener> listeners)
    : listeners_(std::move(listeners)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  FSDPD_CHECK(wake_.valid());
}

void Acceptor::Start(std::unique_ptr<Sink> sink) {
  sink_ = std::move(sink);
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  stopping_ = true;
  FSDPD_CHECK(eventfd_write(wake_.get(), 1) == 0);
  if (thread_.joinable()) thread_.join();
  for (Listener& listener : listeners_) listener.fd.Reset();
}

void Acceptor::Run() {
  while (!stopping_) {
    // Without a free descriptor, poll() would report the listener as ready every time.
    const short accepts = starved_ ? 0 : POLLIN;
    std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
    for (const Listener& listener : listeners_) fds.push_back({listener.fd.get(), accepts, 0});
    const int timeout_ms = starved_ ? kStarvedMs : -1;
    starved_ = false;
    if (poll(fds.data(), fds.size(), timeout_ms) < 0) continue;
    for (size_t i = 1; i < fds.size(); ++i)
      if (fds[i].revents != 0) AcceptFrom(fds[i].fd);
  }
}

void Acceptor::AcceptFrom(int listener) {
  while (!stopping_) {
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const int error = fd.valid() ? 0 : errno;
    if (error == EAGAIN) return;
    if (error == EINTR || error == ECONNABORTED) continue;
    starved_ = !fd.valid();
    if (fd.valid() && !IsReserved(fd.get())) {
      SetOptions(fd.get());
      Sink::NewConnectionParameters connection;
      connection.listener_fd = listener;
      connection.fd = fd.Release();
      sink_->HandleNewConnection(&connection);
      continue;
    }
    const char* const why = starved_ ? strerror(error) : "too many open files";
    if (repeats_.Report(why, absl::Now()).has_value())
      LogWarning("rejected connections, raise the limit of open files or close connections error=%s", why);
    if (starved_) return;
  }
}

}  // namespace fsdpd
