// TcpGroup: one group of CPU ranks with two TCP connections between each two ranks, one for exchanges and one
// for messages. It has no threads: an operation moves its bytes on the calling thread and sleeps in poll().
// (LibTorch's Gloo has a thread per group that spins while a rank's thread holds a connection: with more
// ranks than cores, steps took five times as long: docs/bench/2026-11-28-cpu-transport.md.)
//
// Every message starts with a header (number and length), so ranks that disagree get an error, not wrong
// data. A connection starts with a token from the rendezvous store; connections of other clients are closed.
//
// Thread safety: one thread calls Exchange, one SendTo and one ReceiveFrom; Break from any thread. Errors:
// UNAVAILABLE if a peer closed its connection, no data moved within the timeout, or Break was called.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "fsdp/comm/communicator.h"

namespace fsdpd {

// Bytes to send, or space for bytes to receive.
struct Slice {
  char* data = nullptr;
  int64_t bytes = 0;
};

class TcpGroup {
 public:
  using SliceOf = std::function<Slice(int peer)>;

  // Blocks until all ranks have called it; errors are those of MakeCommunicator.
  static absl::StatusOr<std::unique_ptr<TcpGroup>> Connect(const CommunicatorOptions& options, Store* store);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // Sends `outgoing(p)` to every other rank p and receives `incoming(p)` from it. An incoming slice must have
  // the size that the peer sends; empty slices are skipped.
  absl::Status Exchange(const SliceOf& outgoing, const SliceOf& incoming);

  // Messages between two ranks arrive in order, independently of exchanges.
  absl::Status SendTo(int peer, Slice slice);
  absl::Status ReceiveFrom(int peer, Slice slice);

  // Closes all connections: current and later operations fail, here and at the peers.
  void Break(const std::string& reason);

 private:
  struct Peer {
    UniqueFd exchanges, messages;
    uint64_t sent = 0;  // Number of messages.
    uint64_t received = 0;
  };
  class Transfer;

  TcpGroup(int rank, std::vector<Peer> peers, absl::Duration timeout)
      : rank_(rank), timeout_(timeout), peers_(std::move(peers)) {}

  // Completes all transfers, or returns the first error.
  absl::Status Run(std::vector<Transfer>* transfers);
  absl::Status Error(const absl::Status& status) const;

  const int rank_;
  const absl::Duration timeout_;
  std::vector<Peer> peers_;  // By rank; no connections to itself.
  uint64_t exchanges_ = 0;

  mutable Mutex mutex_;
  std::string broken_ ABSL_GUARDED_BY(mutex_);  // The reason; empty until Break().
};

}  // namespace fsdpd
