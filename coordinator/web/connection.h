// One browser's connection, in plaintext or over TLS, with a date after which every call fails: who reads or
// writes slowly holds its thread no longer than that.
//
// Not thread-safe; but shutdown() of the descriptor by another thread ends what is under way. Borrows the
// descriptor, which must not block.
#pragma once

#include <absl/strings/string_view.h>
#include <absl/time/time.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>

namespace fsdpd {

class Connection {
 public:
  // `tls`: null for plaintext.
  Connection(int fd, std::shared_ptr<SSL_CTX> tls, absl::Time until);
  ~Connection();

  void ExtendTo(absl::Time until) { until_ = until; }
  // False where the other side is gone, talks nonsense, or time is over; as Read and Write.
  bool Handshake();
  bool Read(std::string* more);  // Appends what has come: at least a byte.
  bool Write(absl::string_view text);
  // Says that no more comes, and waits for the other side to go: or what it still sends would have the kernel
  // throw away what it has not read.
  void Close();

 private:
  bool Wait(short events) const;
  // Whether to try again what returned `result`, once it can go on.
  bool Again(int result) const;

  const int fd_;
  const std::shared_ptr<SSL_CTX> tls_;
  SSL* ssl_ = nullptr;
  absl::Time until_;
};

}  // namespace fsdpd
