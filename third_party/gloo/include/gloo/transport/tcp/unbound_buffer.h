#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "gloo/transport/device.h"

namespace gloo {
namespace transport {
namespace tcp {

// Memory that is sent from and received into, where it is. Its first base is transport::UnboundBuffer, at
// offset 0, which is all that a cast needs; the functions are virtual there, and named here by their symbols
// alone.
class UnboundBuffer : public ::gloo::transport::UnboundBuffer {
 public:
  // Both return at once. `slot` is of the caller's choice; what is sent and what is received meet in its
  // order.
  void send(int rank, uint64_t slot, size_t offset, size_t bytes);
  void recv(int rank, uint64_t slot, size_t offset, size_t bytes);
  // Each waits for one of the above. They throw when any connection that this buffer waits for is lost, and
  // on timeout; false only after an abort of the wait.
  bool waitSend(int* rank, std::chrono::milliseconds timeout);
  bool waitRecv(int* rank, std::chrono::milliseconds timeout);
};

}  // namespace tcp
}  // namespace transport
}  // namespace gloo
