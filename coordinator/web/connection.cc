#include "coordinator/web/connection.h"

#include <errno.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kCloseTimeout = absl::Seconds(2);

}  // namespace

Connection::Connection(int fd, std::shared_ptr<SSL_CTX> tls, absl::Time until)
    : fd_(fd), tls_(std::move(tls)), until_(until) {
  if (tls_ == nullptr) return;
  ssl_ = SSL_new(tls_.get());
  if (ssl_ != nullptr) SSL_set_fd(ssl_, fd_);
}

Connection::~Connection() { SSL_free(ssl_); }

bool Connection::Wait(short events) const {
  const int64_t left_ms = absl::ToInt64Milliseconds(until_ - Clock::Real()->Now());
  if (left_ms <= 0) return false;
  pollfd ready = {fd_, events, 0};
  const int found = poll(&ready, 1, static_cast<int>(std::min<int64_t>(left_ms, 60'000)));
  return found > 0 || (found < 0 && errno == EINTR);
}

bool Connection::WaitToRetry(int result) const {
  const int error = SSL_get_error(ssl_, result);
  ERR_clear_error();  // Otherwise the next call would report this error.
  if (error == SSL_ERROR_WANT_READ) return Wait(POLLIN);
  return error == SSL_ERROR_WANT_WRITE && Wait(POLLOUT);
}

bool Connection::Handshake() {
  if (tls_ == nullptr) return true;
  if (ssl_ == nullptr) return false;
  for (;;) {
    const int done = SSL_accept(ssl_);
    if (done == 1) return true;
    if (!WaitToRetry(done)) return false;
  }
}

bool Connection::Read(std::string* more) {
  char bytes[4096];
  for (;;) {
    const ssize_t n =
        ssl_ != nullptr ? SSL_read(ssl_, bytes, sizeof bytes) : recv(fd_, bytes, sizeof bytes, 0);
    if (n > 0) {
      more->append(bytes, static_cast<size_t>(n));
      return true;
    }
    if (ssl_ != nullptr) {
      if (!WaitToRetry(static_cast<int>(n))) return false;
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR) || !Wait(POLLIN)) {
      return false;
    }
  }
}

bool Connection::Write(absl::string_view text) {
  while (!text.empty()) {
    const size_t part = std::min<size_t>(text.size(), 16 << 10);
    const ssize_t n = ssl_ != nullptr ? SSL_write(ssl_, text.data(), static_cast<int>(part))
                                      : send(fd_, text.data(), part, MSG_NOSIGNAL);
    if (n > 0) {
      text.remove_prefix(static_cast<size_t>(n));
      // Also limits a client that reads in small pieces.
      if (Clock::Real()->Now() > until_) return false;
    } else if (ssl_ != nullptr) {
      if (!WaitToRetry(static_cast<int>(n))) return false;
    } else if ((errno != EAGAIN && errno != EINTR) || !Wait(POLLOUT)) {
      return false;
    }
  }
  return true;
}

void Connection::Close() {
  if (ssl_ != nullptr) SSL_shutdown(ssl_);
  ERR_clear_error();
  shutdown(fd_, SHUT_WR);
  until_ = std::min(until_, Clock::Real()->Now() + kCloseTimeout);
  char rest[4096];
  for (;;) {
    const ssize_t n = recv(fd_, rest, sizeof rest, 0);
    if (n == 0 || Clock::Real()->Now() > until_) return;
    if (n < 0 && ((errno != EAGAIN && errno != EINTR) || !Wait(POLLIN))) return;
  }
}

}  // namespace fsdpd
