#include "fsdp/comm/tcp_group.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/time/clock.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/errno_status.h"
#include "base/ids.h"
#include "base/net/address.h"
#include "base/net/listener.h"

namespace fsdpd {
namespace {

enum Channel : uint32_t { kExchanges = 0, kMessages = 1, kChannels = 2 };

constexpr size_t kTokenBytes = 32;

// The first bytes of a connection.
struct Hello {
  char token[kTokenBytes];  // Token of the listening rank.
  uint32_t rank;            // Number of the connecting rank.
  uint32_t channel;
};

// Maximum number of connections without a hello. Ranks send it immediately, so the oldest one is not a
// rank's.
constexpr size_t kMaxUnknown = 64;
// Retry interval while the network is down.
constexpr absl::Duration kConnectPause = absl::Milliseconds(200);
// A host that vanishes sends nothing: keep-alive probes close its connections within a minute.
constexpr int kIdleSeconds = 30, kProbeSeconds = 10, kProbes = 3;

absl::Time Now() { return Clock::Real()->Now(); }

// For poll(): rounded up, so that it does not spin through the last millisecond.
int MillisecondsUntil(absl::Time deadline) {
  const int64_t left = absl::ToInt64Milliseconds(absl::Ceil(deadline - Now(), absl::Milliseconds(1)));
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

// Returns OK once a descriptor is ready, or DEADLINE_EXCEEDED.
absl::Status Poll(std::vector<pollfd>* fds, absl::Time deadline) {
  for (;;) {
    const int ready = poll(fds->data(), fds->size(), MillisecondsUntil(deadline));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus("poll");
    if (Now() >= deadline) return absl::DeadlineExceededError("timed out");
  }
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

void SetOptions(int fd) {
  const auto set = [fd](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof value);  // Best effort.
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

// The numeric address of a listener: peers may not resolve this host's name.
absl::StatusOr<std::string> NumericHost(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return ErrnoStatus("getsockname");
  char host[NI_MAXHOST];
  const int error =
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  return std::string(host);
}

// REQUIRES: nothing was sent yet, so the socket buffer has space for it.
absl::Status SendHello(int fd, const Hello& hello) {
  const ssize_t sent = send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
  if (sent < 0) return ErrnoStatus("send");
  return sent == sizeof hello ? absl::OkStatus()
                              : absl::UnavailableError("send: the socket's buffer is full");
}

// Errors worth a retry: a link that is down may come up again. A rank that refuses connections is gone.
bool IsOfNetwork(int error) {
  return error == ENETUNREACH || error == EHOSTUNREACH || error == ENETDOWN || error == EHOSTDOWN ||
         error == ETIMEDOUT;
}

absl::StatusOr<UniqueFd> ConnectOnce(const addrinfo& address, absl::Time deadline, int* error) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  if (!fd.valid()) return ErrnoStatus("socket");
  *error = connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (*error == EINPROGRESS || *error == EINTR) {
    std::vector<pollfd> fds = {{fd.get(), POLLOUT, 0}};
    FSDPD_RETURN_IF_ERROR(Poll(&fds, deadline));
    socklen_t size = sizeof *error;
    FSDPD_CHECK(getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, error, &size) == 0);
  }
  if (*error != 0) return ErrnoStatus("connect", *error);
  SetOptions(fd.get());
  return fd;
}

absl::StatusOr<UniqueFd> ConnectTo(const HostPort& address, absl::Time deadline) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  const auto free_found = absl::MakeCleanup([found] { freeaddrinfo(found); });
  for (;;) {
    int failed = 0;
    absl::StatusOr<UniqueFd> fd = ConnectOnce(*found, deadline, &failed);
    if (fd.ok() || !IsOfNetwork(failed) || Now() + kConnectPause >= deadline) return fd;
    absl::SleepFor(kConnectPause);
  }
}

// Key of the value "HOST:PORT TOKEN" of a rank.
std::string AddressKey(const std::string& group, int rank) { return absl::StrCat(group, "/address/", rank); }

// Connects one rank: it connects to lower ranks, and higher ranks connect to it.
class Rendezvous {
 public:
  Rendezvous(const CommunicatorOptions& options, Store* store)
      : options_(options), store_(store), deadline_(Now() + options.rendezvous_timeout) {
    connections_.resize(options.size);
  }

  absl::Status Run() {
    FSDPD_ASSIGN_OR_RETURN(listener_, Listen({options_.bind_address, 0}, "the ranks of a group"));
    token_ = NewToken();
    FSDPD_CHECK(token_.size() == kTokenBytes);
    FSDPD_ASSIGN_OR_RETURN(listener_.address.host, NumericHost(listener_.fd.get()));
    const std::string own = absl::StrCat(ToString(listener_.address), " ", token_);
    FSDPD_RETURN_IF_ERROR(store_->Set(AddressKey(options_.name, options_.rank), own));
    for (int peer = 0; peer < options_.size; ++peer) {
      if (peer == options_.rank) continue;
      // Waits for the addresses of all ranks, although higher ranks connect to this one, so that an error
      // names the missing rank.
      FSDPD_ASSIGN_OR_RETURN(const std::string address,
                             GetFrom(store_, peer, AddressKey(options_.name, peer),
                                     std::max(deadline_ - Now(), absl::ZeroDuration())));
      if (peer < options_.rank) FSDPD_RETURN_IF_ERROR(ConnectToPeer(peer, address));
    }
    return AcceptHigherRanks();
  }

  UniqueFd Take(int peer, Channel channel) { return std::move(connections_[peer].by_channel[channel]); }

 private:
  struct Connections {
    UniqueFd by_channel[kChannels];
  };
  // Accepted, without a hello yet.
  struct Unknown {
    UniqueFd fd;
    Hello hello;
    size_t bytes = 0;
  };

  absl::Status ConnectToPeer(int peer, const std::string& published) {
    const std::vector<std::string> words = absl::StrSplit(published, ' ');
    const auto address = ParseHostPort(words[0]);
    if (words.size() != 2 || words[1].size() != kTokenBytes || !address.ok())
      return absl::UnavailableError(absl::StrCat("rank ", peer, " published an invalid address (got '",
                                                 published, "', want HOST:PORT TOKEN)"));
    for (uint32_t channel = 0; channel < kChannels; ++channel) {
      absl::StatusOr<UniqueFd> fd = ConnectTo(*address, deadline_);
      Hello hello = {};
      std::memcpy(hello.token, words[1].data(), kTokenBytes);
      hello.rank = htonl(static_cast<uint32_t>(options_.rank));
      hello.channel = htonl(channel);
      const absl::Status status = fd.ok() ? SendHello(fd->get(), hello) : fd.status();
      if (!status.ok()) {
        return absl::Status(status.code(), absl::StrCat("connecting to rank ", peer, " at its bind address ",
                                                        words[0], ": ", status.message()));
      }
      connections_[peer].by_channel[channel] = *std::move(fd);
    }
    return absl::OkStatus();
  }

  absl::Status AcceptHigherRanks() {
    size_t missing = static_cast<size_t>(options_.size - 1 - options_.rank) * kChannels;
    while (missing > 0) {
      std::vector<pollfd> fds = {{listener_.fd.get(), POLLIN, 0}};
      for (const Unknown& each : unknown_) fds.push_back({each.fd.get(), POLLIN, 0});
      absl::Status status = Poll(&fds, deadline_);
      if (Now() >= deadline_)
        status = absl::DeadlineExceededError("timed out");  // Also while strangers connect.
      if (!status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat("rank ", FirstMissing(), " did not connect: ", status.message()));
      }
      for (size_t i = unknown_.size(); i > 0; --i) {
        if (fds[i].revents != 0) missing -= ReadHello(i - 1);
      }
      if (fds[0].revents != 0) FSDPD_RETURN_IF_ERROR(Accept());
    }
    return absl::OkStatus();
  }

  absl::Status Accept() {
    UniqueFd fd(accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      const bool full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (full && unknown_.empty()) return ErrnoStatus("accept");
      if (full) unknown_.erase(unknown_.begin());
      return absl::OkStatus();  // Accept again in the next turn; other errors concern one client.
    }
    SetOptions(fd.get());
    if (unknown_.size() == kMaxUnknown) unknown_.erase(unknown_.begin());
    unknown_.push_back({std::move(fd), {}, 0});
    return absl::OkStatus();
  }

  // Returns the number of connections that it completed: 1 or 0.
  size_t ReadHello(size_t index) {
    Unknown& from = unknown_[index];
    const ssize_t bytes =
        recv(from.fd.get(), reinterpret_cast<char*>(&from.hello) + from.bytes, sizeof(Hello) - from.bytes, 0);
    if (bytes < 0 && WouldBlock()) return 0;
    from.bytes += static_cast<size_t>(std::max<ssize_t>(bytes, 0));
    if (bytes > 0 && from.bytes < sizeof(Hello)) return 0;
    Unknown done = std::move(from);
    unknown_.erase(unknown_.begin() + static_cast<std::ptrdiff_t>(index));
    const int64_t rank = ntohl(done.hello.rank);
    const uint32_t channel = ntohl(done.hello.channel);
    const bool known = bytes > 0 && std::memcmp(done.hello.token, token_.data(), kTokenBytes) == 0 &&
                       rank > options_.rank && rank < options_.size && channel < kChannels;
    if (!known || connections_[rank].by_channel[channel].valid()) return 0;  // Closes the connection.
    connections_[rank].by_channel[channel] = std::move(done.fd);
    return 1;
  }

  int FirstMissing() const {
    for (int rank = options_.rank + 1; rank < options_.size; ++rank) {
      for (const UniqueFd& fd : connections_[rank].by_channel) {
        if (!fd.valid()) return rank;
      }
    }
    return -1;
  }

  const CommunicatorOptions& options_;
  Store* const store_;
  const absl::Time deadline_;
  Listener listener_;
  std::string token_;
  std::vector<Connections> connections_;  // By rank.
  std::vector<Unknown> unknown_;
};

}  // namespace

// One message to or from a peer.
class TcpGroup::Transfer {
 public:
  Transfer(int peer, int fd, bool out, uint64_t number, Slice slice)
      : peer_(peer),
        fd_(fd),
        out_(out),
        expected_{number, static_cast<uint64_t>(slice.bytes)},
        slice_(slice) {
    if (out) header_ = expected_;
  }

  int peer() const { return peer_; }
  bool done() const { return moved_ == kHeader + slice_.bytes; }
  int64_t moved() const { return moved_; }
  // Also wakes up when the peer has closed: that does not make a full socket writable.
  pollfd Wanted() const { return {fd_, static_cast<short>(out_ ? POLLOUT | POLLRDHUP : POLLIN), 0}; }
  bool Closed(const pollfd& ready) const { return out_ && (ready.revents & POLLRDHUP) != 0; }

  // Moves as much as possible without blocking. Errors name the peer.
  absl::Status Move() {
    while (!done()) {
      iovec parts[2];
      msghdr message = {};
      message.msg_iov = parts;
      if (moved_ < kHeader)
        parts[message.msg_iovlen++] = {reinterpret_cast<char*>(&header_) + moved_, size_t(kHeader - moved_)};
      const int64_t of_slice = std::max<int64_t>(moved_ - kHeader, 0);
      parts[message.msg_iovlen++] = {slice_.data + of_slice, static_cast<size_t>(slice_.bytes - of_slice)};
      const ssize_t bytes = out_ ? sendmsg(fd_, &message, MSG_NOSIGNAL) : recvmsg(fd_, &message, 0);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes < 0 && WouldBlock()) return absl::OkStatus();
      if (bytes < 0) return absl::UnavailableError(ErrnoText(absl::StrCat("rank ", peer_)));
      if (bytes == 0) return ClosedError();
      moved_ += bytes;
      if (!out_ && moved_ >= kHeader && !(header_ == expected_)) {
        return absl::UnavailableError(absl::StrCat("rank ", peer_, " sent message ", header_.number, " of ",
                                                   header_.bytes, " bytes, want message ", expected_.number,
                                                   " of ", expected_.bytes, ": an error in fsdpd"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ClosedError() const {
    return absl::UnavailableError(absl::StrCat("rank ", peer_, " closed the connection"));
  }

 private:
  struct Header {
    uint64_t number, bytes;
    bool operator==(const Header& other) const { return number == other.number && bytes == other.bytes; }
  };
  static constexpr int64_t kHeader = sizeof(Header);

  int peer_;
  int fd_;
  bool out_;
  Header expected_;
  Header header_ = {};
  Slice slice_;
  int64_t moved_ = 0;  // Bytes of header and slice.
};

absl::StatusOr<std::unique_ptr<TcpGroup>> TcpGroup::Connect(const CommunicatorOptions& options,
                                                            Store* store) {
  Rendezvous rendezvous(options, store);
  if (const absl::Status status = rendezvous.Run(); !status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("connecting group '", options.name, "' on rank ", options.rank, " of ",
                                     options.size, " at ", options.bind_address, ": ", status.message()));
  }
  std::vector<Peer> peers(options.size);
  for (int peer = 0; peer < options.size; ++peer) {
    peers[peer].exchanges = rendezvous.Take(peer, kExchanges);
    peers[peer].messages = rendezvous.Take(peer, kMessages);
  }
  return std::unique_ptr<TcpGroup>(new TcpGroup(options.rank, std::move(peers), options.operation_timeout));
}

absl::Status TcpGroup::Exchange(const SliceOf& outgoing, const SliceOf& incoming) {
  const uint64_t number = ++exchanges_;
  std::vector<Transfer> transfers;
  transfers.reserve(2 * peers_.size());
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank_ + step) % size();  // Avoids that all send to rank 0 first.
    const int fd = peers_[peer].exchanges.get();
    if (const Slice out = outgoing(peer); out.bytes > 0) transfers.emplace_back(peer, fd, true, number, out);
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank_ + size() - step) % size();
    const int fd = peers_[peer].exchanges.get();
    if (const Slice in = incoming(peer); in.bytes > 0) transfers.emplace_back(peer, fd, false, number, in);
  }
  return Run(&transfers);
}

absl::Status TcpGroup::SendTo(int peer, Slice slice) {
  Peer& to = peers_[peer];
  std::vector<Transfer> transfers = {{peer, to.messages.get(), true, ++to.sent, slice}};
  return Run(&transfers);
}

absl::Status TcpGroup::ReceiveFrom(int peer, Slice slice) {
  Peer& from = peers_[peer];
  std::vector<Transfer> transfers = {{peer, from.messages.get(), false, ++from.received, slice}};
  return Run(&transfers);
}

absl::Status TcpGroup::Run(std::vector<Transfer>* transfers) {
  absl::Time deadline = Now() + timeout_;
  int64_t moved = 0;
  std::vector<pollfd> fds;
  std::vector<const Transfer*> unfinished;  // Parallel to fds.
  for (;;) {
    fds.clear();
    unfinished.clear();
    int64_t moved_now = 0;
    for (Transfer& each : *transfers) {
      if (!each.done()) {
        if (const absl::Status status = each.Move(); !status.ok()) return Error(status);
      }
      moved_now += each.moved();
      if (each.done()) continue;
      fds.push_back(each.Wanted());
      unfinished.push_back(&each);
    }
    if (unfinished.empty()) return absl::OkStatus();
    if (moved_now > moved) deadline = Now() + timeout_;
    moved = moved_now;
    const absl::Status status = Poll(&fds, deadline);
    if (absl::IsDeadlineExceeded(status)) {
      return Error(absl::UnavailableError(absl::StrCat("rank ", unfinished.front()->peer(),
                                                       ": no data within ", absl::FormatDuration(timeout_))));
    }
    FSDPD_RETURN_IF_ERROR(status);
    for (size_t i = 0; i < fds.size(); ++i) {
      if (unfinished[i]->Closed(fds[i])) return Error(unfinished[i]->ClosedError());
    }
  }
}

void TcpGroup::Break(const std::string& reason) {
  {
    MutexLock lock(&mutex_);
    if (!broken_.empty()) return;
    broken_ = reason;
  }
  // Shut down, not closed: another thread may be in an operation.
  for (const Peer& peer : peers_) {
    for (const UniqueFd* fd : {&peer.exchanges, &peer.messages}) {
      if (fd->valid()) shutdown(fd->get(), SHUT_RDWR);
    }
  }
}

absl::Status TcpGroup::Error(const absl::Status& status) const {
  MutexLock lock(&mutex_);
  return broken_.empty() ? status : absl::UnavailableError(broken_);
}

}  // namespace fsdpd
