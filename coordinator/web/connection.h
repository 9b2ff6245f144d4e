// One HTTP connection, in plaintext or over TLS, with a deadline after which every call fails.
//
// Not thread-safe, except that another thread may shutdown() the descriptor, which ends a blocked call.
// Borrows the descriptor, which must be non-blocking.
#pragma once

#include <absl/strings/string_view.h>
#include <absl/time/time.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>

namespace fsdpd {

class Connection {
 public:
  // `tls`: nullptr for plaintext.
  Connection(int fd, std::shared_ptr<SSL_CTX> tls, absl::Time until);
  ~Connection();

  void ExtendTo(absl::Time until) { until_ = until; }
  // Handshake, Read and Write return false if the client is gone, violates the protocol, or the deadline has
  // passed.
  bool Handshake();
  bool Read(std::string* more);  // Appends at least one byte.
  bool Write(absl::string_view text);
  // Half-closes the connection and waits for the client to close. Without this wait the kernel would answer
  // late data with a reset, and the client could lose the unread response.
  void Close();

 private:
  bool Wait(short events) const;
  // Waits until the operation that returned `result` can be retried. False: it cannot.
  bool WaitToRetry(int result) const;

  const int fd_;
  const std::shared_ptr<SSL_CTX> tls_;
  SSL* ssl_ = nullptr;
  absl::Time until_;
};

}  // namespace fsdpd
