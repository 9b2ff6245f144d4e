// One group of ranks over LibTorch's Gloo, with two things that it has not: a way to wake its waiters, and an
// exchange in place. What gloo_communicator.h makes its operations of.
//
// One thread calls the operations, SendTo and ReceiveFrom apart; Break() may be called from any. Errors are
// exceptions, as LibTorch's own: call inside CatchTorch (fsdp/torch/torch_status.h).
#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "fsdp/comm/communicator.h"

namespace gloo {
namespace transport {
class UnboundBuffer;
}
}  // namespace gloo

namespace fsdpd {

// Bytes that cross the wire, or where they go.
struct Slice {
  char* data = nullptr;
  int64_t bytes = 0;
};

class GlooGroup : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  using SliceOf = std::function<Slice(int peer)>;

  // Sends `outgoing(p)` to every other rank p and receives `incoming(p)` from it, on the calling thread. An
  // incoming slice is as long as what that rank sends here; empty ones are not sent. `incoming` slices lie
  // within `target`: one buffer for all, so that any peer's loss ends the wait and not only that of the one
  // waited for.
  void Exchange(const SliceOf& outgoing, const SliceOf& incoming, Slice target);

  // To one other rank, and from it. Messages between each two ranks match in order, whatever else the group
  // does; one thread may send while another receives.
  void SendTo(int peer, Slice slice);
  void ReceiveFrom(int peer, Slice slice);

  // Fails what waits now and what is called later, here and at the peers.
  void Break(const std::string& reason);

 private:
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  Buffer MakeBuffer(Slice slice);

  // Names an exchange on the wire. Numbers below 2^56 are free: Gloo's own operations set the top byte.
  uint64_t exchanges_ = 0;
  // By peer, in the same range but above all exchanges.
  std::map<int, uint64_t> sent_;
  std::map<int, uint64_t> received_;
};

// Blocks until all ranks have called it; errors are MakeCommunicator's. The first group makes the process
// ignore SIGPIPE and turns off LibTorch's recorder of collectives.
absl::StatusOr<c10::intrusive_ptr<GlooGroup>> ConnectGlooGroup(const CommunicatorOptions& options,
                                                               Store* store);

}  // namespace fsdpd
