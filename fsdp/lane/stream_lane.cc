#include "fsdp/lane/stream_lane.h"

#include <absl/strings/str_format.h>
#include <absl/time/clock.h>
#include <c10/cuda/CUDAGuard.h>

#include <chrono>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "fsdp/torch/cuda_device.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// Polling interval for events: much shorter than the shortest step.
constexpr std::chrono::microseconds kPoll(20);

}  // namespace

absl::Status StatusOfCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%s: %s", call, cudaGetErrorString(error)));
}

EventPool::~EventPool() {
  MutexLock lock(&mutex_);
  for (const cudaEvent_t event : free_) cudaEventDestroy(event);
}

cudaEvent_t EventPool::Take() {
  {
    MutexLock lock(&mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  const c10::cuda::CUDAGuard guard(device_);
  cudaEvent_t event = nullptr;
  return cudaEventCreate(&event) == cudaSuccess ? event : nullptr;
}

void EventPool::Return(cudaEvent_t event) {
  MutexLock lock(&mutex_);
  free_.push_back(event);
}

CudaEvent::~CudaEvent() {
  if (order_ != nullptr) pool_->Return(order_);
  if (time_ != nullptr && time_ != order_) pool_->Return(time_);
}

// Polls instead of calling cudaEventSynchronize, which cannot be interrupted.
absl::Status CudaEvent::Await(const Interrupt& interrupted) {
  if (!status_.ok()) return status_;
  FSDPD_CHECK(time_ == order_);  // Ambiguous for an event in a graph.
  while (true) {
    const cudaError_t state = cudaEventQuery(order_);
    if (state != cudaErrorNotReady) return StatusOfCuda(state, "cudaEventQuery");
    if (interrupted) FSDPD_RETURN_IF_ERROR(interrupted());
    std::this_thread::sleep_for(kPoll);
  }
}

double CudaEvent::SecondsSince(const LaneEvent& earlier) const {
  const auto* other = dynamic_cast<const CudaEvent*>(&earlier);
  FSDPD_CHECK(other != nullptr);  // An event of another device.
  // A failed lane recorded no events: its times are meaningless.
  if (!status_.ok() || !other->status_.ok()) return 0;
  float milliseconds = 0;
  const cudaError_t error = cudaEventElapsedTime(&milliseconds, other->time_, time_);
  FSDPD_CHECK(error != cudaErrorNotReady);  // Not reached yet.
  return error == cudaSuccess ? milliseconds / 1e3 : 0;
}

StreamLane::StreamLane(c10::DeviceIndex device, bool high_priority)
    : stream_(c10::cuda::getStreamFromPool(high_priority, device)),
      events_(std::make_shared<EventPool>(device)) {}

StreamLane::~StreamLane() {
  if (!drained_) cudaStreamSynchronize(stream());
}

void StreamLane::Submit(std::function<absl::Status()> work) {
  if (!error_.ok()) return;
  const c10::cuda::CUDAStreamGuard guard(stream_);
  error_ = CatchTorch(work);
}

// While a graph is recorded, an event that orders streams is not recorded when the graph runs; timing takes a
// second, external event.
LaneEventPtr StreamLane::Record() {
  if (!error_.ok()) return std::make_shared<CudaEvent>(events_, nullptr, nullptr, error_);
  const cudaEvent_t order = events_->Take(), time = recording_ ? events_->Take() : order;
  if (order == nullptr || time == nullptr) {
    KeepFirstError(StatusOfCuda(cudaGetLastError(), "cudaEventCreate"));
  } else {
    KeepFirstError(StatusOfCuda(cudaEventRecord(order, stream()), "cudaEventRecord"));
    if (recording_)
      KeepFirstError(StatusOfCuda(cudaEventRecordWithFlags(time, stream(), cudaEventRecordExternal),
                                  "cudaEventRecordWithFlags"));
  }
  return std::make_shared<CudaEvent>(events_, order, time, error_);
}

void StreamLane::Wait(const LaneEventPtr& event) {
  const auto* recorded = dynamic_cast<const CudaEvent*>(event.get());
  if (recorded == nullptr) return KeepFirstError(event->Await());  // Event of a CPU lane: blocks the host.
  if (!recorded->status().ok()) return KeepFirstError(recorded->status());
  KeepFirstError(StatusOfCuda(cudaStreamWaitEvent(stream(), recorded->event()), "cudaStreamWaitEvent"));
}

absl::StatusOr<std::unique_ptr<StreamWord>> StreamLane::WordOf(std::atomic<uint64_t>* word) const {
  if (word == nullptr) return nullptr;
  const c10::cuda::CUDAGuard guard(stream_.device_index());
  return StreamWord::Make(word, kProgressBytes);
}

// The word keeps its value until the stream stores to it, so it always shows the device's progress.
absl::Status StreamLane::ShowProgress(std::atomic<uint64_t>* word) {
  progress_.reset();
  FSDPD_ASSIGN_OR_RETURN(progress_, WordOf(word));
  return absl::OkStatus();
}

absl::Status StreamLane::ShowLaunches(std::atomic<uint64_t>* word) {
  launches_.reset();
  FSDPD_ASSIGN_OR_RETURN(launches_, WordOf(word));
  return absl::OkStatus();
}

void StreamLane::Progress(uint64_t value) { Store(value, &progress_); }

void StreamLane::Store(uint64_t value, std::unique_ptr<StreamWord>* to) {
  if (*to == nullptr || !error_.ok()) return;
  const absl::Status stored = (*to)->Store(value, stream());
  if (stored.ok()) return;
  if (recording_) return KeepFirstError(stored);  // The step then runs without a graph.
  // Not essential for a step. If the CUDA context is broken, the next work reports it.
  LogWarning("stopped recording the progress of a stream error=%s", stored.message());
  (*to)->Abandon();
  to->reset();
}

absl::Status StreamLane::Synchronize() {
  KeepFirstError(StatusOfCuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize"));
  return error_;
}

bool StreamLane::Drain(absl::Time deadline) {
  drained_ = true;
  for (const auto* word : {&progress_, &launches_}) {
    if (*word != nullptr) (*word)->Abandon();
  }
  while (cudaStreamQuery(stream()) == cudaErrorNotReady) {
    if (absl::Now() >= deadline) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

void StreamLane::Launch(cudaGraphExec_t graph, uint64_t label) {
  if (!error_.ok()) return;
  Store(label, &launches_);
  KeepFirstError(StatusOfCuda(cudaGraphLaunch(graph, stream()), "cudaGraphLaunch"));
}

void StreamLane::KeepFirstError(const absl::Status& status) {
  if (error_.ok()) error_ = status;
}

std::unique_ptr<Lane> MakeStreamLane(int device_index, bool high_priority) {
  FSDPD_CHECK(CudaAvailable());
  return std::make_unique<StreamLane>(static_cast<c10::DeviceIndex>(device_index), high_priority);
}

}  // namespace fsdpd
