#include <absl/strings/str_format.h>
#include <absl/time/clock.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "fsdp/lane/lane.h"
#include "fsdp/lane/stream_word.h"
#include "fsdp/torch/cuda_device.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// Between two looks at an event: shorter than the smallest step by far.
constexpr std::chrono::microseconds kPoll(20);

absl::Status StatusOfCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%s: %s", call, cudaGetErrorString(error)));
}

// Events of one device, used again after their mark is gone: creating one costs more than recording it. There
// are as many as marks were alive at once. Thread-safe: a mark may die on any thread.
class EventPool {
 public:
  explicit EventPool(c10::DeviceIndex device) : device_(device) {}

  ~EventPool() {
    MutexLock lock(&mutex_);
    for (const cudaEvent_t event : free_) cudaEventDestroy(event);
  }

  // Null when the device has no more.
  cudaEvent_t Take() {
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

  void GiveBack(cudaEvent_t event) {
    MutexLock lock(&mutex_);
    free_.push_back(event);
  }

 private:
  const c10::DeviceIndex device_;
  Mutex mutex_;
  std::vector<cudaEvent_t> free_ ABSL_GUARDED_BY(mutex_);
};

class EventMark : public Mark {
 public:
  // `event`: recorded already; null only with an error.
  EventMark(std::shared_ptr<EventPool> pool, cudaEvent_t event, absl::Status status)
      : pool_(std::move(pool)), event_(event), status_(std::move(status)) {}

  ~EventMark() override {
    if (event_ != nullptr) pool_->GiveBack(event_);
  }

  using Mark::Await;
  // Polled rather than cudaEventSynchronize, which nothing ends.
  absl::Status Await(const Interrupt& interrupted) override {
    if (!status_.ok()) return status_;
    while (true) {
      const cudaError_t state = cudaEventQuery(event_);
      if (state != cudaErrorNotReady) return StatusOfCuda(state, "cudaEventQuery");
      if (interrupted) FSDPD_RETURN_IF_ERROR(interrupted());
      std::this_thread::sleep_for(kPoll);
    }
  }

  double SecondsSince(const Mark& earlier) const override {
    const auto* other = dynamic_cast<const EventMark*>(&earlier);
    FSDPD_CHECK(other != nullptr);  // A mark of another device.
    // A lane that failed recorded no events; its times mean nothing.
    if (!status_.ok() || !other->status_.ok()) return 0;
    float milliseconds = 0;
    const cudaError_t error = cudaEventElapsedTime(&milliseconds, other->event_, event_);
    FSDPD_CHECK(error != cudaErrorNotReady);  // Not reached yet.
    return error == cudaSuccess ? milliseconds / 1e3 : 0;
  }

  cudaEvent_t event() const { return event_; }
  const absl::Status& status() const { return status_; }

 private:
  const std::shared_ptr<EventPool> pool_;
  const cudaEvent_t event_;
  const absl::Status status_;
};

// The host only enqueues: an error that a kernel makes is found by the Await or Synchronize after it.
class StreamLane : public Lane {
 public:
  StreamLane(c10::DeviceIndex device, bool high_priority)
      : stream_(c10::cuda::getStreamFromPool(high_priority, device)),
        events_(std::make_shared<EventPool>(device)) {}

  ~StreamLane() override {
    if (!drained_) cudaStreamSynchronize(stream_.stream());
  }

  void Submit(std::function<absl::Status()> work) override {
    if (!error_.ok()) return;
    const c10::cuda::CUDAStreamGuard guard(stream_);
    error_ = CatchTorch(work);
  }

  MarkPtr Record() override {
    cudaEvent_t event = nullptr;
    if (error_.ok()) {
      event = events_->Take();
      if (event == nullptr) {
        Keep(StatusOfCuda(cudaGetLastError(), "cudaEventCreate"));
      } else {
        Keep(StatusOfCuda(cudaEventRecord(event, stream_.stream()), "cudaEventRecord"));
      }
    }
    return std::make_shared<EventMark>(events_, event, error_);
  }

  void Wait(const MarkPtr& mark) override {
    const auto* recorded = dynamic_cast<const EventMark*>(mark.get());
    if (recorded == nullptr) return Keep(mark->Await());  // Of a CPU lane: the host waits for the stream.
    if (!recorded->status().ok()) return Keep(recorded->status());
    Keep(StatusOfCuda(cudaStreamWaitEvent(stream_.stream(), recorded->event()), "cudaStreamWaitEvent"));
  }

  // The word stays what it is until the stream stores to it: it is the device that says how far it has come.
  absl::Status ShowProgress(std::atomic<uint64_t>* word) override {
    word_.reset();
    if (word == nullptr) return absl::OkStatus();
    const c10::cuda::CUDAGuard guard(stream_.device_index());
    FSDPD_ASSIGN_OR_RETURN(word_, StreamWord::Make(word, kProgressBytes));
    return absl::OkStatus();
  }

  void Progress(uint64_t value) override {
    if (word_ == nullptr || !error_.ok()) return;
    const absl::Status stored = word_->Store(value, stream_.stream());
    if (stored.ok()) return;
    // Nothing that a step needs. Where the context itself is broken, the work that follows says so.
    LogWarning("how far a stream is will not be shown any more: %s", stored.message());
    word_->Abandon();
    word_.reset();
  }

  absl::Status Synchronize() override {
    Keep(StatusOfCuda(cudaStreamSynchronize(stream_.stream()), "cudaStreamSynchronize"));
    return error_;
  }

  void Drain(absl::Time deadline) override {
    drained_ = true;
    if (word_ != nullptr) word_->Abandon();
    while (cudaStreamQuery(stream_.stream()) == cudaErrorNotReady && absl::Now() < deadline) {
      std::this_thread::sleep_for(kPoll);
    }
  }

 private:
  void Keep(const absl::Status& status) {
    if (error_.ok()) error_ = status;
  }

  const c10::cuda::CUDAStream stream_;
  const std::shared_ptr<EventPool> events_;
  absl::Status error_;
  bool drained_ = false;
  std::unique_ptr<StreamWord> word_;
};

}  // namespace

std::unique_ptr<Lane> MakeStreamLane(int device_index, bool high_priority) {
  FSDPD_CHECK(CudaAvailable());
  return std::make_unique<StreamLane>(static_cast<c10::DeviceIndex>(device_index), high_priority);
}

}  // namespace fsdpd
