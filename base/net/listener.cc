#include "base/net/listener.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

// The port is at the same offset in sockaddr_in and sockaddr_in6.
in_port_t* PortIn(sockaddr* address) { return &reinterpret_cast<sockaddr_in*>(address)->sin_port; }

int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  FSDPD_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(*PortIn(reinterpret_cast<sockaddr*>(&address)));
}

// Invalid on failure, with errno set.
UniqueFd ListenAt(const addrinfo& at) {
  UniqueFd fd(socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, at.ai_protocol));
  const int on = 1, off = 0;
  // Independent of net.ipv6.bindv6only.
  if (at.ai_family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (fd.valid() && setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      bind(fd.get(), at.ai_addr, at.ai_addrlen) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) {
    return fd;
  }
  return UniqueFd();
}

absl::StatusOr<std::vector<Listener>> ListenOn(const HostPort& address, absl::string_view what, size_t most) {
  const auto cannot = [&](const char* why) {
    return absl::UnavailableError(absl::StrCat("cannot serve ", what, " at ", ToString(address), ": ", why,
                                               " [ADDRESS_NOT_AVAILABLE]"));
  };
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return cannot(gai_strerror(error));
  const auto free_found = absl::MakeCleanup([found] { freeaddrinfo(found); });
  std::vector<Listener> listeners;
  int last_error = 0;
  for (const addrinfo* at = found; at != nullptr && listeners.size() < most; at = at->ai_next) {
    if (!listeners.empty()) *PortIn(at->ai_addr) = htons(static_cast<uint16_t>(listeners[0].address.port));
    UniqueFd fd = ListenAt(*at);
    if (!fd.valid()) {
      last_error = errno;
      if (most == 1) break;
      continue;
    }
    const int port = PortOf(fd.get());
    listeners.push_back({std::move(fd), {address.host, port}});
  }
  if (listeners.empty()) return cannot(strerror(last_error));
  return listeners;
}

}  // namespace

absl::StatusOr<Listener> Listen(const HostPort& address, absl::string_view what) {
  FSDPD_ASSIGN_OR_RETURN(std::vector<Listener> listeners, ListenOn(address, what, 1));
  return std::move(listeners[0]);
}

absl::StatusOr<std::vector<Listener>> ListenOnAll(const HostPort& address, absl::string_view what) {
  constexpr size_t kMost = 8;
  if (address.host == "0.0.0.0") {
    // An IPv6 socket also accepts IPv4 connections. It fails if IPv6 is disabled.
    absl::StatusOr<std::vector<Listener>> both = ListenOn({"::", address.port}, what, kMost);
    if (both.ok()) return both;
  }
  return ListenOn(address, what, kMost);
}

}  // namespace fsdpd
