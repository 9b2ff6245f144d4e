#include "fsdp/checkpoint/each_tensor.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"

namespace fsdpd {
namespace {

class FirstError {
 public:
  void Take(const absl::Status& status) {
    MutexLock lock(&mutex_);
    if (first_.ok()) first_ = status;
  }
  absl::Status Get() {
    MutexLock lock(&mutex_);
    return first_;
  }

 private:
  Mutex mutex_;
  absl::Status first_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status ForEachTensor(size_t count, int threads, const std::function<bool()>& stopped,
                           const std::function<absl::Status(size_t)>& work) {
  FSDPD_CHECK(threads > 0);
  std::atomic<size_t> next = 0;
  FirstError error;
  std::vector<std::thread> workers;
  for (size_t i = 0; i < std::min(count, static_cast<size_t>(threads)); ++i) {
    workers.emplace_back([&] {
      for (size_t tensor = next++; tensor < count && error.Get().ok(); tensor = next++) {
        error.Take(stopped() ? absl::CancelledError("interrupted") : work(tensor));
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return error.Get();
}

}  // namespace fsdpd
