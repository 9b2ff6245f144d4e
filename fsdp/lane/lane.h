// Lane: runs work in submission order, concurrently with other lanes. A lane is a CUDA stream, a worker
// thread, or the calling thread. Events order lanes (Wait) and measure time (SecondsSince); Progress
// publishes how far the lane has come to other processes, readable even when this process is stopped or dead.
//
//   compute   CPU: the trainer's own thread.   CUDA: a stream.
//   gather    CPU: a worker thread.            CUDA: a high-priority stream.
//   reduce    CPU: a worker thread.            CUDA: a high-priority stream.
//   outer     CPU: a worker thread.            CUDA: a high-priority stream.
//   copy      CPU: a worker thread.            CUDA: a high-priority stream.
//
// Thread safety: one thread submits to, records on and waits on a lane. Errors: the first error of a lane is
// sticky. Later work of the lane is skipped, and everything that waits for a later event of it gets that
// error. Exceptions count as errors (fsdp/torch/torch_status.h). Destroying a lane waits for submitted work;
// its events remain valid.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace fsdpd {

using Interrupt = std::function<absl::Status()>;

// A point in a lane's order. Shared, since several lanes may wait for it.
class LaneEvent {
 public:
  virtual ~LaneEvent() = default;
  // Blocks the host until the point is reached; returns the lane's error so far. While a device works,
  // `interrupted` (may be empty) is polled and its error ends the wait, because a lost peer ends neither a
  // kernel nor a CUDA event. CPU lanes do not poll: an abort makes their collectives fail.
  virtual absl::Status Await(const Interrupt& interrupted) = 0;
  absl::Status Await() { return Await(nullptr); }
  // REQUIRES: both events were reached and belong to the same device.
  virtual double SecondsSince(const LaneEvent& earlier) const = 0;
};
using LaneEventPtr = std::shared_ptr<LaneEvent>;

class Lane {
 public:
  virtual ~Lane() = default;
  virtual void Submit(std::function<absl::Status()> work) = 0;
  virtual LaneEventPtr Record() = 0;
  virtual void Wait(const LaneEventPtr& event) = 0;  // Later work of this lane starts after the event.

  // Makes Progress store to `word` (null: nowhere). The word outlives the lane and starts a block of
  // kProgressBytes, aligned to that size and otherwise unused, which a stream registers with its device. On
  // error the device cannot store to it: the lane still works, and Progress does nothing.
  static constexpr int64_t kProgressBytes = 4096;
  virtual absl::Status ShowProgress(std::atomic<uint64_t>* word) = 0;
  // Stores `value` in lane order: after earlier work and before later work. Not stored after the lane has
  // failed, so the word shows where. On a stream the device stores it, without the host.
  virtual void Progress(uint64_t value) = 0;

  // As ShowProgress, for the labels of graphs launched on this lane (lane_graph.h).
  virtual absl::Status ShowLaunches(std::atomic<uint64_t>* /*word*/) { return absl::OkStatus(); }

  virtual absl::Status Synchronize() = 0;  // Blocks the host until all work so far is done.
  // Replaces Synchronize after an abort. Returns false if a stream still waits for something at the deadline;
  // it then waits until the process exits, and destroying the lane does not block.
  virtual bool Drain(absl::Time /*deadline*/) {
    Synchronize().IgnoreError();
    return true;
  }
};

std::unique_ptr<Lane> MakeInlineLane();  // Runs work on the calling thread; Wait blocks.
std::unique_ptr<Lane> MakeThreadLane();
// The stream is current on the calling thread while work runs. Aborts in builds without CUDA; check
// CudaAvailable() (cuda_device.h) first.
std::unique_ptr<Lane> MakeStreamLane(int device_index, bool high_priority);

}  // namespace fsdpd
