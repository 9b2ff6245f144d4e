#include "base/net/metrics_server.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/net/listener.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kExchangeTime = absl::Seconds(10);  // Default scrape timeout of Prometheus.
constexpr int kStarvedMs = 100;                              // Pause of the listener after such a failure.
constexpr size_t kMaxConnections = 64;                       // A few scrapers and their retries.
constexpr size_t kMaxRequestBytes = 8 << 10;                 // The header of a scrape has some hundred bytes.

std::string Response(absl::string_view status, absl::string_view body, bool with_body) {
  return absl::StrCat("HTTP/1.1 ", status,
                      "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: ",
                      body.size(), "\r\nConnection: close\r\n\r\n", with_body ? body : "");
}

std::string Answer(absl::string_view request, const MetricsServer::Page& page) {
  const std::vector<absl::string_view> line =
      absl::StrSplit(request.substr(0, request.find_first_of("\r\n")), ' ');
  if (line.size() != 3 || !absl::StartsWith(line[2], "HTTP/1.")) {
    return Response("400 Bad Request", "not an HTTP/1 request\n", true);
  }
  const bool head = line[0] == "HEAD";
  if (!head && line[0] != "GET") return Response("405 Method Not Allowed", "GET only\n", true);
  if (line[1].substr(0, line[1].find('?')) != "/metrics") {
    return Response("404 Not Found", "not found; use /metrics\n", !head);
  }
  return Response("200 OK", page(), !head);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen, Page page) {
  FSDPD_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(listen));
  FSDPD_ASSIGN_OR_RETURN(Listener listener, Listen(address, "metrics"));
  return std::unique_ptr<MetricsServer>(
      new MetricsServer(std::move(listener.fd), ToString(listener.address), std::move(page)));
}

MetricsServer::MetricsServer(UniqueFd listener, std::string endpoint, Page page)
    : listener_(std::move(listener)),
      endpoint_(std::move(endpoint)),
      page_(std::move(page)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  FSDPD_CHECK(wake_.valid());
  thread_ = std::thread([this] { Run(); });
}

MetricsServer::~MetricsServer() {
  stopping_ = true;
  FSDPD_CHECK(eventfd_write(wake_.get(), 1) == 0);
  thread_.join();
}

void MetricsServer::Run() {
  while (!stopping_) {
    // While accept fails, the listener would be ready in every iteration.
    const short accepts = starved_ ? 0 : POLLIN;
    std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}, {listener_.get(), accepts, 0}};
    for (const Connection& connection : connections_) {
      const bool writes = connection.sent < connection.response.size();
      fds.push_back({connection.fd.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
    }
    // The oldest connection has the earliest deadline.
    int timeout_ms = -1;
    if (!connections_.empty()) {
      const absl::Duration left = connections_.front().until - Clock::Real()->Now();
      timeout_ms = static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left)) + 1);
    }
    if (starved_) timeout_ms = timeout_ms < 0 ? kStarvedMs : std::min(timeout_ms, kStarvedMs);
    starved_ = false;
    if (poll(fds.data(), fds.size(), timeout_ms) < 0) continue;
    const absl::Time now = Clock::Real()->Now();
    size_t at = 2;
    for (auto it = connections_.begin(); it != connections_.end(); ++at) {
      const bool stays_open = (fds[at].revents == 0 || Serve(&*it)) && now < it->until;
      it = stays_open ? std::next(it) : connections_.erase(it);
    }
    if (fds[1].revents != 0) Accept();
  }
}

void MetricsServer::Accept() {
  while (true) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    // Out of descriptors: close the oldest connection, or else the pending one would keep this loop busy.
    const bool starved = !fd.valid() && errno == EMFILE && !connections_.empty();
    if (starved || connections_.size() == kMaxConnections) connections_.pop_front();
    if (starved) continue;
    if (!fd.valid()) {
      starved_ = errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
      return;
    }
    connections_.emplace_back();
    connections_.back().fd = std::move(fd);
    connections_.back().until = Clock::Real()->Now() + kExchangeTime;
  }
}

// False if the connection is done.
bool MetricsServer::Serve(Connection* connection) {
  if (connection->response.empty() || connection->answered()) return Read(connection);
  const ssize_t n = send(connection->fd.get(), connection->response.data() + connection->sent,
                         connection->response.size() - connection->sent, MSG_NOSIGNAL);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  connection->sent += static_cast<size_t>(n);
  // Half-close, and let the peer close: closing with unread data would make the kernel discard the response.
  if (connection->answered()) shutdown(connection->fd.get(), SHUT_WR);
  return true;
}

bool MetricsServer::Read(Connection* connection) {
  char bytes[4096];
  const ssize_t n = recv(connection->fd.get(), bytes, sizeof bytes, 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  if (connection->answered()) return true;
  connection->request.append(bytes, static_cast<size_t>(n));
  if (absl::StrContains(connection->request, "\r\n\r\n") || absl::StrContains(connection->request, "\n\n")) {
    connection->response = Answer(connection->request, page_);
  } else if (connection->request.size() > kMaxRequestBytes) {
    connection->response = Response("431 Request Header Fields Too Large", "request is too long\n", true);
  }
  return true;
}

}  // namespace fsdpd
