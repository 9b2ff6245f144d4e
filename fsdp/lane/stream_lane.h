// CUDA stream lanes and their events. Only built with --config=cuda; use MakeStreamLane of lane.h.
#pragma once

#include <absl/status/statusor.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "fsdp/lane/lane.h"
#include "fsdp/lane/stream_word.h"

namespace fsdpd {

// Converts an error of the CUDA runtime.
absl::Status StatusOfCuda(cudaError_t error, const char* call);

// Pool of the CUDA events of one device, since creating one costs more than recording it. Grows to the
// largest number of events alive at the same time. Thread-safe: an event may be released on any thread.
class EventPool {
 public:
  explicit EventPool(c10::DeviceIndex device) : device_(device) {}
  ~EventPool();

  cudaEvent_t Take();  // Null if the device has no more.
  void Return(cudaEvent_t event);

 private:
  const c10::DeviceIndex device_;
  Mutex mutex_;
  std::vector<cudaEvent_t> free_ ABSL_GUARDED_BY(mutex_);
};

class CudaEvent : public LaneEvent {
 public:
  // `order`: for waiting. `time`: for measuring; the same event, except in a graph, where one event cannot do
  // both. Both are recorded, and null only with an error.
  CudaEvent(std::shared_ptr<EventPool> pool, cudaEvent_t order, cudaEvent_t time, absl::Status status)
      : pool_(std::move(pool)), order_(order), time_(time), status_(std::move(status)) {}
  ~CudaEvent() override;

  using LaneEvent::Await;
  absl::Status Await(const Interrupt& interrupted) override;
  double SecondsSince(const LaneEvent& earlier) const override;

  cudaEvent_t event() const { return order_; }
  const absl::Status& status() const { return status_; }

 private:
  const std::shared_ptr<EventPool> pool_;
  const cudaEvent_t order_, time_;
  const absl::Status status_;
};

// The host only enqueues; an error of a kernel is returned by the next Await or Synchronize.
class StreamLane : public Lane {
 public:
  StreamLane(c10::DeviceIndex device, bool high_priority);
  ~StreamLane() override;

  void Submit(std::function<absl::Status()> work) override;
  LaneEventPtr Record() override;
  void Wait(const LaneEventPtr& event) override;
  absl::Status ShowProgress(std::atomic<uint64_t>* word) override;
  void Progress(uint64_t value) override;
  absl::Status ShowLaunches(std::atomic<uint64_t>* word) override;
  absl::Status Synchronize() override;
  bool Drain(absl::Time deadline) override;

  // For lane_graph.h. While recording, events measure each launch.
  void SetRecording(bool recording) { recording_ = recording; }
  // Returns and clears the error: a failed recording leaves the lane usable.
  absl::Status TakeError() { return std::exchange(error_, absl::OkStatus()); }
  void Launch(cudaGraphExec_t graph, uint64_t label);

  cudaStream_t stream() const { return stream_.stream(); }

 private:
  void KeepFirstError(const absl::Status& status);
  absl::StatusOr<std::unique_ptr<StreamWord>> WordOf(std::atomic<uint64_t>* word) const;
  void Store(uint64_t value, std::unique_ptr<StreamWord>* to);

  const c10::cuda::CUDAStream stream_;
  const std::shared_ptr<EventPool> events_;
  absl::Status error_;
  bool recording_ = false;
  bool drained_ = false;
  std::unique_ptr<StreamWord> progress_, launches_;  // Null if not shown.
};

}  // namespace fsdpd
