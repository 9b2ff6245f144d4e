#include <cstddef>
#include <deque>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "fsdp/lane/clock_event.h"
#include "fsdp/lane/lane.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// Maximum number of queued items. A step of 200 units and 16 micro-batches is about 25,000 items per lane,
// and the host may run one step ahead. Submit blocks beyond that, so a stuck peer cannot exhaust the memory.
// This cannot deadlock: an item only waits for events that were recorded before it was submitted.
constexpr size_t kMaxQueued = 1 << 16;

class ThreadLane : public Lane {
 public:
  ThreadLane() : worker_([this] { Run(); }) {}

  ~ThreadLane() override {
    {
      MutexLock lock(&mutex_);
      closing_ = true;
      changed_.SignalAll();
    }
    worker_.join();
  }

  void Submit(std::function<absl::Status()> work) override {
    Push([work = std::move(work)](absl::Status* error) {
      if (error->ok()) *error = CatchTorch(work);
    });
  }

  LaneEventPtr Record() override {
    auto event = std::make_shared<ClockEvent>();
    Push([event](absl::Status* error) { event->Reach(*error); });
    return event;
  }

  void Wait(const LaneEventPtr& event) override {
    Push([event](absl::Status* error) {
      const absl::Status status = event->Await();
      if (error->ok()) *error = status;
    });
  }

  absl::Status ShowProgress(std::atomic<uint64_t>* word) override {
    word_ = word;
    return absl::OkStatus();
  }

  void Progress(uint64_t value) override {
    if (word_ == nullptr) return;
    Push([word = word_, value](absl::Status* error) {
      if (error->ok()) word->store(value, std::memory_order_release);
    });
  }

  absl::Status Synchronize() override { return Record()->Await(); }

 private:
  using Item = std::function<void(absl::Status* error)>;

  void Push(Item item) {
    MutexLock lock(&mutex_);
    while (queue_.size() >= kMaxQueued) changed_.Wait(&mutex_);
    queue_.push_back(std::move(item));
    changed_.SignalAll();
  }

  // Returns false when the lane is closing and the queue is empty.
  bool Pop(Item* item) {
    MutexLock lock(&mutex_);
    while (queue_.empty() && !closing_) changed_.Wait(&mutex_);
    if (queue_.empty()) return false;
    if (queue_.size() == kMaxQueued) changed_.SignalAll();
    *item = std::move(queue_.front());
    queue_.pop_front();
    return true;
  }

  void Run() {
    absl::Status error;
    Item item;
    while (Pop(&item)) {
      item(&error);
      item = nullptr;  // Release captures now, not when the next item arrives.
    }
  }

  std::atomic<uint64_t>* word_ = nullptr;  // Used by the submitting thread.

  Mutex mutex_;
  CondVar changed_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread worker_;  // Last: it uses all of the above.
};

}  // namespace

std::unique_ptr<Lane> MakeThreadLane() { return std::make_unique<ThreadLane>(); }

}  // namespace fsdpd
