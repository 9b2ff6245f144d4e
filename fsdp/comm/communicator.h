// Collectives over one group of ranks. Three transports implement it and pass one parameterised test: NCCL
// (GPUs), TCP (CPU processes) and local (ranks as threads of one process).
//
// Order: operations on one communicator must be called in the same order on every rank; take that order from
// the program. One communicator serialises its operations, so gathers and reductions each have their own.
// Where: on CPU a call blocks until its buffers hold the result. On CUDA it enqueues on the stream that is
// current on the calling thread (the lane's) and returns.
// Ownership: buffers belong to the caller and must live until the operation completed.
// Errors: UNAVAILABLE naming the operation and the transport's words when a peer is gone; the communicator is
// unusable from then on. Size-1 groups take the same path as any other, and a count of 0 is legal.
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

  // In place: `buffer` holds size() x count elements and rank r's own part starts at r x count.
  virtual absl::Status AllGather(void* buffer, int64_t count, DType dtype) = 0;

  // Sums over ranks, in fp32 whatever crosses the wire, and on CPU in rank order. `in` holds size() x count
  // elements of type `wire` and is left undefined; `out` gets count fp32 sums. For fp32 `out` may be rank()'s
  // part of `in`, and `scratch` is not used; a narrower wire moves each rank's part once (an all-to-all) and
  // needs `scratch`, as large as `in`, to receive into.
  virtual absl::Status ReduceScatter(void* in, void* scratch, float* out, int64_t count, DType wire) = 0;

  // In place sum of fp32.
  virtual absl::Status AllReduce(float* buffer, int64_t count) = 0;

  // Part p of `in` (count elements) goes to rank p, which has it in part rank() of `out`. Not in place.
  // Nobody sends to itself: `out`'s own part is undefined.
  virtual absl::Status AllToAll(const void* in, void* out, int64_t count, DType dtype) = 0;

  // To one other rank, and from it; of each two ranks as many elements of the same type as are sent are
  // received, in the order in which they are sent. One thread may send while another receives; NCCL's
  // communicators do one thing at a time, so there each direction has its own (neighbours.h).
  virtual absl::Status Send(const void* /*buffer*/, int64_t /*count*/, DType /*dtype*/, int /*to*/) {
    return absl::UnimplementedError("this transport sends to no single rank");
  }
  virtual absl::Status Receive(void* /*buffer*/, int64_t /*count*/, DType /*dtype*/, int /*from*/) {
    return absl::UnimplementedError("this transport receives from no single rank");
  }

  virtual absl::Status Broadcast(void* buffer, int64_t count, DType dtype, int root) = 0;

  virtual absl::Status Barrier() = 0;

  // Waits until what was enqueued on the calling thread's current stream has ended: on CPU it has.
  virtual absl::Status Await() { return absl::OkStatus(); }

  // Says that what later AllGather and AllToAll calls read and write, and narrow ReduceScatter calls
  // exchange, lies in `bytes` of `memory`, which MakeWindow() gave (window.h) and which the communicator
  // keeps alive. Collective, with as many bytes on every rank. A transport that can then move them without
  // the device's processors does; others ignore it.
  virtual absl::Status Register(std::shared_ptr<void> /*memory*/, int64_t /*bytes*/) {
    return absl::OkStatus();
  }

  // That transport does, of what was registered.
  virtual bool HasCopyEngines() const { return false; }

  // An error that came up behind an operation which had returned. Cheap; any thread.
  virtual absl::Status Health() const { return absl::OkStatus(); }

  // Wakes this rank's threads that wait in an operation, which then fails, as does every later one. TCP's
  // and the local group's peers fail with it; NCCL's must be aborted each. Callable from any thread.
  virtual void Abort() = 0;
};

struct CommunicatorOptions {
  DeviceKind device = DeviceKind::kCpu;
  int rank = 0;
  int size = 1;
  int device_index = 0;                    // CUDA.
  bool windows = true;                     // CUDA: Register() asks for one, if every rank of the group does.
  std::string bind_address = "127.0.0.1";  // TCP: an address of this host that its peers reach.
  std::string name;                        // Prefix of its keys in the store: "shard/gather/0".
  // How long a rank waits for the others to come to the store, and how long an operation waits for the
  // slowest of them (TCP; a rank may be busy with a checkpoint). A process that died is noticed immediately,
  // not by this.
  absl::Duration rendezvous_timeout = absl::Minutes(5);
  absl::Duration operation_timeout = absl::Minutes(30);
};

// Blocks until all ranks have called it. TCP on CPU, NCCL on CUDA. DEADLINE_EXCEEDED when a rank did not
// come, UNAVAILABLE when one could not be reached. `store` must outlive the communicator. UNIMPLEMENTED for
// CUDA in a binary built without --config=cuda.
absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(const CommunicatorOptions& options,
                                                               Store* store);

}  // namespace fsdpd
