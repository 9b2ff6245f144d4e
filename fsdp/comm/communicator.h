// Communicator: collectives over one group of ranks. Implementations: NCCL (GPUs), TCP (CPU processes) and
// local (ranks as threads); all pass one parameterized test suite.
//
// Order: every rank must call the operations of a communicator in the same order, that of the program. A
// communicator serializes its operations, so gathers and reductions use separate ones.
// Completion: on CPU a call blocks until its buffers hold the result. On CUDA it enqueues on the calling
// thread's current stream (the lane's) and returns.
// Ownership: buffers belong to the caller and must live until the operation has completed.
// Errors: UNAVAILABLE, with the operation and the transport's message, if a peer is gone; the communicator is
// unusable afterwards. Groups of size 1 take the same path as any other, and a count of 0 is valid.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <memory>
#include <string>

#include "fsdp/comm/store.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place: `buffer` holds size() * count elements, and rank r's part starts at r * count.
  virtual absl::Status AllGather(void* buffer, int64_t count, DType dtype) = 0;

  // Sums over ranks in fp32, whatever the wire type, and on CPU in rank order. `in` holds size() * count
  // elements of type `wire` and is undefined afterwards; `out` receives count fp32 sums. For fp32, `out` may
  // be rank()'s part of `in`, and `scratch` is unused. A narrower wire type is exchanged as an all-to-all, so
  // each part is sent once, and needs `scratch` of the size of `in`.
  virtual absl::Status ReduceScatter(void* in, void* scratch, float* out, int64_t count, DType wire) = 0;

  // In-place fp32 sum.
  virtual absl::Status AllReduce(float* buffer, int64_t count) = 0;

  // Sends part p of `in` (count elements) to rank p, which receives it in part rank() of `out`. Not in place.
  // The rank's own part of `out` is undefined.
  virtual absl::Status AllToAll(const void* in, void* out, int64_t count, DType dtype) = 0;

  // Point-to-point. Between two ranks, receives must match the order, size and type of sends. One thread may
  // send while another receives; a NCCL communicator does one at a time, so each direction has its own there
  // (neighbors.h).
  virtual absl::Status Send(const void* /*buffer*/, int64_t /*count*/, DType /*dtype*/, int /*to*/) {
    return absl::UnimplementedError("this transport does not support send");
  }
  virtual absl::Status Receive(void* /*buffer*/, int64_t /*count*/, DType /*dtype*/, int /*from*/) {
    return absl::UnimplementedError("this transport does not support receive");
  }

  virtual absl::Status Broadcast(void* buffer, int64_t count, DType dtype, int root) = 0;

  virtual absl::Status Barrier() = 0;

  // Waits for the operations enqueued on the current stream; on CPU they are complete.
  virtual absl::Status Await() { return absl::OkStatus(); }

  // Registers `bytes` of `memory` from MakeWindow() (window.h), which the communicator keeps alive, as the
  // location of the buffers of later AllGather, AllToAll and narrow ReduceScatter calls. Collective, with the
  // same size on every rank. A transport may then move them with copy engines instead of multiprocessors;
  // others ignore it.
  virtual absl::Status Register(std::shared_ptr<void> /*memory*/, int64_t /*bytes*/) {
    return absl::OkStatus();
  }

  // Whether registered memory is moved by copy engines.
  virtual bool HasCopyEngines() const { return false; }

  // Returns an asynchronous error of an earlier operation. Cheap; any thread.
  virtual absl::Status Health() const { return absl::OkStatus(); }

  // Unblocks this rank's threads, whose operations then fail, as do all later ones. Peers of TCP and local
  // groups fail as well; NCCL communicators must be aborted on each rank. Any thread.
  virtual void Abort() = 0;
};

struct CommunicatorOptions {
  DeviceKind device = DeviceKind::kCpu;
  int rank = 0;
  int size = 1;
  int device_index = 0;                    // CUDA.
  bool windows = true;                     // CUDA: Register() creates a window if all ranks want it.
  std::string bind_address = "127.0.0.1";  // TCP: an address of this host that peers can reach.
  std::string name;                        // Prefix of the group's keys in the store: "shard/gather/0".
  // Timeouts for other ranks to arrive at the store, and for an operation to make progress (TCP; a peer may
  // be busy with a checkpoint). A peer that exits is detected immediately, independently of these.
  absl::Duration rendezvous_timeout = absl::Minutes(5);
  absl::Duration operation_timeout = absl::Minutes(30);
};

}  // namespace fsdpd
