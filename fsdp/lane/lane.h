// A lane runs work in the order it was submitted, beside the other lanes: a CUDA stream, a worker thread, or
// the calling thread itself. Marks have three faces: Wait is order, SecondsSince is timing, and Progress says
// to others, in another process too, how far the lane has come, also when this process is stopped or dead.
//
//   compute   CPU: the trainer's own thread.   CUDA: a stream.
//   gather    CPU: a worker thread.            CUDA: a stream of high priority.
//   reduce    CPU: a worker thread.            CUDA: a stream of high priority.
//   outer     CPU: a worker thread.            CUDA: a stream of high priority.
//   copy      CPU: a worker thread.            CUDA: a stream of high priority.
//
// Thread safety: one thread submits to, marks and waits on a lane. Errors: the first error of a lane's work
// stays with the lane; later work of that lane is skipped, and everything that waits for one of its later
// marks gets that error. Work that throws counts as work that failed (fsdp/torch/torch_status.h). A
// destroyed lane has finished what was submitted to it; its marks stay good.
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
  // Host waits until the point is reached, and gets the lane's error so far. While a device works,
  // `interrupted` (may be empty) is asked again and again, and an error from it ends the wait: a peer that is
  // gone ends neither a kernel nor an event. CPU lanes do not ask, since their collectives fail with an
  // abort.
  virtual absl::Status Await(const Interrupt& interrupted) = 0;
  absl::Status Await() { return Await(nullptr); }
  // REQUIRES: both reached, both of the same device.
  virtual double SecondsSince(const LaneEvent& earlier) const = 0;
};
using LaneEventPtr = std::shared_ptr<LaneEvent>;

class Lane {
 public:
  virtual ~Lane() = default;
  virtual void Submit(std::function<absl::Status()> work) = 0;
  virtual LaneEventPtr Record() = 0;
  virtual void Wait(const LaneEventPtr& mark) = 0;  // Later work of this lane starts after the mark.

  // From now on Progress stores to `word` (null: nowhere), which outlives the lane and lies at the head of
  // kProgressBytes that nothing else shares, aligned to as many: a stream makes them known to its device. An
  // error: the device's streams cannot store to it; the lane works without, and Progress does nothing.
  static constexpr int64_t kProgressBytes = 4096;
  virtual absl::Status ShowProgress(std::atomic<uint64_t>* word) = 0;
  // Stored in the lane's order, after the work before and before the work after; not once the lane has an
  // error, so that the word stays where the lane failed. On a stream the device stores, and no host takes
  // part.
  virtual void Progress(uint64_t value) = 0;

  // Likewise, for the labels of graphs that are launched here (lane_graph.h).
  virtual absl::Status ShowLaunches(std::atomic<uint64_t>* /*word*/) { return absl::OkStatus(); }

  virtual absl::Status Synchronize() = 0;  // Host waits for all work so far.
  // After an abort, in place of Synchronize: what a stream still waits for at the deadline, and then this is
  // false, it waits for until the process leaves. Its destruction waits for nothing either.
  virtual bool Drain(absl::Time /*deadline*/) {
    Synchronize().IgnoreError();
    return true;
  }
};

std::unique_ptr<Lane> MakeInlineLane();  // Runs on the calling thread; Wait blocks it.
std::unique_ptr<Lane> MakeThreadLane();
// The stream is current on the calling thread while work runs. UNIMPLEMENTED builds without CUDA abort here;
// callers ask CudaAvailable() of cuda_device.h first.
std::unique_ptr<Lane> MakeStreamLane(int device_index, bool high_priority);

}  // namespace fsdpd
