#include "base/net/address.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace fsdpd {
namespace {

constexpr int kMaxPort = 65535;
constexpr size_t kMaxPortDigits = 5;

absl::Status Wrong(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not HOST:PORT: ", why));
}

bool IsHostChar(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_'; }
// A zone follows '%', as in "fe80::1%eth0".
bool IsBracketedHostChar(char c) { return IsHostChar(c) || c == ':' || c == '%'; }

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return Wrong(text, "missing ':'");
  absl::string_view host = text.substr(0, colon);
  const absl::string_view digits = text.substr(colon + 1);
  HostPort address;
  const bool is_number = !digits.empty() && digits.size() <= kMaxPortDigits &&
                         std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit);
  if (!is_number || !absl::SimpleAtoi(digits, &address.port) || address.port > kMaxPort) {
    return Wrong(text, absl::StrCat("invalid port (want 0..", kMaxPort, ")"));
  }
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) return Wrong(text, "the host is missing (0.0.0.0 is every address of this machine)");
  if (!bracketed && host.find(':') != absl::string_view::npos) {
    return Wrong(text, "IPv6 addresses need brackets, as in [::1]:7777");
  }
  if (!std::all_of(host.begin(), host.end(), bracketed ? IsBracketedHostChar : IsHostChar)) {
    return Wrong(text, "invalid character in the host");
  }
  address.host = std::string(host);
  return address;
}

absl::StatusOr<std::vector<std::string>> ParseAddresses(absl::string_view text) {
  std::vector<std::string> addresses;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const absl::string_view address = absl::StripAsciiWhitespace(part);
    if (const absl::StatusOr<HostPort> read = ParseHostPort(address); !read.ok()) return read.status();
    addresses.emplace_back(address);
  }
  return addresses;
}

namespace {

bool IsWildcard(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == htonl(INADDR_ANY);
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

}  // namespace

// Tries to bind a socket, which succeeds only for an address of this machine.
absl::Status CheckOwnAddress(const std::string& host) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("'", host, "' cannot be resolved: ", gai_strerror(error),
                                                   "; want an IP address or a host name"));
  }
  bool own = false, wildcard = false;
  for (const addrinfo* each = found; each != nullptr && !own; each = each->ai_next) {
    wildcard |= IsWildcard(*each->ai_addr);
    const int fd = socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    own = bind(fd, each->ai_addr, each->ai_addrlen) == 0;
    close(fd);
  }
  freeaddrinfo(found);
  if (wildcard) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", host, "' is a wildcard address; use one at which other nodes reach this machine"));
  }
  if (own) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", host, "' is not an address of this machine"));
}

bool IsLoopback(const HostPort& address) {
  in_addr v4 = {};
  if (inet_pton(AF_INET, address.host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6 = {};
  if (inet_pton(AF_INET6, address.host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return address.host == "localhost";
}

std::string ToString(const HostPort& address) {
  const bool brackets = address.host.find(':') != std::string::npos;
  return brackets ? absl::StrCat("[", address.host, "]:", address.port)
                  : absl::StrCat(address.host, ":", address.port);
}

}  // namespace fsdpd
