#include "base/listener.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  FSDPD_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  // At the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

absl::StatusOr<Listener> Listen(const HostPort& address, absl::string_view what) {
  const auto cannot = [&](const char* why) {
    return absl::UnavailableError(absl::StrCat("cannot serve ", what, " at ", ToString(address), ": ", why));
  };
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return cannot(gai_strerror(error));
  const auto free_found = absl::MakeCleanup([found] { freeaddrinfo(found); });
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, found->ai_protocol));
  const int on = 1;
  if (!fd.valid() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    return cannot(strerror(errno));
  }
  const int port = PortOf(fd.get());
  return Listener{std::move(fd), {address.host, port}};
}

}  // namespace fsdpd
