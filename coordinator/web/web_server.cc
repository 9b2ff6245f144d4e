#include "coordinator/web/web_server.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process/shortage.h"
#include "coordinator/web/connection.h"

namespace fsdpd {
namespace {

constexpr int kStarvedMs = 100;  // Pause before the next accept after a shortage.
// Each takes a thread. Further connections are closed without a response.
constexpr size_t kMaxRejected = 16;
constexpr char kBusyBody[] =
    R"({"code":"UNAVAILABLE","reason":"PAGE_BUSY","message":"the web server has too many )"
    R"(open requests; retry in a few seconds"})"
    "\n";

// gRPC's format of peers: "ipv4:127.0.0.1:41234".
std::string PeerText(const sockaddr_storage& peer) {
  char text[INET6_ADDRSTRLEN] = "";
  if (peer.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(peer);
    inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof text);
    return absl::StrCat("ipv6:[", text, "]:", ntohs(six.sin6_port));
  }
  const auto& four = reinterpret_cast<const sockaddr_in&>(peer);
  inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
  return absl::StrCat("ipv4:", text, ":", ntohs(four.sin_port));
}

bool IsComplete(const std::string& head) {
  return absl::StrContains(head, "\r\n\r\n") || absl::StrContains(head, "\n\n");
}

}  // namespace

absl::StatusOr<std::unique_ptr<WebServer>> WebServer::Start(const WebOptions& options, Answer answer) {
  FSDPD_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(options.listen));
  if (options.port == nullptr && !IsLoopback(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.listen, ": plaintext is only supported on loopback addresses; use TLS"));
  }
  FSDPD_ASSIGN_OR_RETURN(Listener listener, Listen(address, "the web UI"));
  return std::unique_ptr<WebServer>(new WebServer(options, std::move(listener), std::move(answer)));
}

WebServer::WebServer(const WebOptions& options, Listener listener, Answer answer)
    : options_(options),
      listener_(std::move(listener)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      answer_(std::move(answer)),
      tls_(options.port == nullptr ? nullptr : std::make_unique<ServerTls>(options.port)) {
  FSDPD_CHECK(wake_.valid());
  thread_ = std::thread([this] { Run(); });
}

WebServer::~WebServer() {
  stopping_ = true;
  FSDPD_CHECK(eventfd_write(wake_.get(), 1) == 0);
  thread_.join();
}

std::string WebServer::url() const {
  return absl::StrCat(tls_ == nullptr ? "http://" : "https://", ToString(listener_.address), "/");
}

void WebServer::Run() {
  // OpenSSL writes without MSG_NOSIGNAL. Threads of connections inherit the mask.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  while (!stopping_) {
    // While accept fails, the listener stays readable, and polling it would spin.
    const short accepts = starved_ ? 0 : POLLIN;
    pollfd fds[] = {{wake_.get(), POLLIN, 0}, {listener_.fd.get(), accepts, 0}};
    const int found = poll(fds, 2, starved_ ? kStarvedMs : -1);
    starved_ = false;
    eventfd_t ignored;
    if (fds[0].revents != 0) eventfd_read(wake_.get(), &ignored);
    Reap();
    if (found > 0 && fds[1].revents != 0) Accept();
  }
  while (!exchanges_.empty()) End(exchanges_.begin());
}

void WebServer::End(std::list<Exchange>::iterator exchange) {
  shutdown(exchange->fd.get(), SHUT_RDWR);
  exchange->thread.join();
  exchanges_.erase(exchange);
}

void WebServer::Reap() {
  for (auto it = exchanges_.begin(); it != exchanges_.end();) {
    const auto each = it++;
    if (each->done) End(each);
  }
}

bool WebServer::EndIdle() {
  const auto idle = std::find_if(exchanges_.begin(), exchanges_.end(), [](const Exchange& each) {
    return !each.rejected && !each.ended && !each.answering;
  });
  if (idle == exchanges_.end()) return false;
  shutdown(idle->fd.get(), SHUT_RDWR);
  idle->ended = true;
  return true;
}

bool WebServer::EnsureCapacity() {
  const auto rejected = [](const Exchange& each) { return each.rejected; };
  const auto rejected_count =
      static_cast<size_t>(std::count_if(exchanges_.begin(), exchanges_.end(), rejected));
  const auto ended = static_cast<size_t>(
      std::count_if(exchanges_.begin(), exchanges_.end(), [](const Exchange& each) { return each.ended; }));
  if (exchanges_.size() - rejected_count - ended < options_.max_exchanges || EndIdle()) return true;
  if (rejected_count >= kMaxRejected) End(std::find_if(exchanges_.begin(), exchanges_.end(), rejected));
  return false;
}

void WebServer::Accept() {
  sockaddr_storage peer = {};
  socklen_t size = sizeof peer;
  UniqueFd fd(
      accept4(listener_.fd.get(), reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) {
    starved_ = errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
    if (errno == EMFILE) EndIdle();
    return;
  }
  const bool rejected = !EnsureCapacity();
  Exchange& exchange = exchanges_.emplace_back();
  exchange.fd = std::move(fd);
  exchange.rejected = rejected;
  exchange.from = PeerText(peer);
  try {
    exchange.thread = std::thread([this, &exchange] {
      Serve(&exchange);
      exchange.done = true;
      eventfd_write(wake_.get(), 1);
    });
  } catch (const std::system_error& error) {
    const std::optional<Shortage> shortage = ShortageIn(error);
    LogWarning("rejected a web connection error=%s", shortage.has_value() ? shortage->text : error.what());
    exchanges_.pop_back();
  }
}

void WebServer::Serve(Exchange* exchange) const {
  const absl::Time begin = Clock::Real()->Now();
  std::shared_ptr<SSL_CTX> context = tls_ == nullptr ? nullptr : tls_->Context();
  if (tls_ != nullptr && context == nullptr) return;
  Connection connection(exchange->fd.get(), std::move(context), begin + options_.head_time);
  if (!connection.Handshake()) return;
  std::string head;
  while (!IsComplete(head) && head.size() <= kMaxHeadBytes) {
    // Also limits a client that sends byte by byte.
    if (!connection.Read(&head) || Clock::Real()->Now() > begin + options_.head_time) return;
  }
  exchange->answering = true;
  const std::string answer = exchange->rejected ? RenderHttp({}, {503, "application/json", kBusyBody})
                                                : RespondTo(head, exchange->from);
  connection.ExtendTo(begin + options_.exchange_time);
  const bool written = connection.Write(answer);
  exchange->answering = false;
  if (written) connection.Close();
}

std::string WebServer::RespondTo(const std::string& head, const std::string& from) const {
  if (head.size() > kMaxHeadBytes)
    return RenderHttp({}, {431, "text/plain", "request head: exceeds 16 KiB\n"});
  const absl::StatusOr<HttpRequest> request = ParseHttpRequest(head);
  if (request.ok()) return RenderHttp(*request, answer_(*request, from));
  const int status = absl::IsUnimplemented(request.status()) ? 405 : 400;
  return RenderHttp({}, {status, "text/plain", absl::StrCat(request.status().message(), "\n")});
}

}  // namespace fsdpd
