#include "base/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"

namespace fsdpd {
namespace {

class FirstError {
 public:
  void Update(const absl::Status& status) {
    MutexLock lock(&mutex_);
    first_.Update(status);
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

absl::Status ParallelFor(size_t count, int threads, const std::function<absl::Status(size_t)>& work) {
  FSDPD_CHECK(threads > 0);
  std::atomic<size_t> next = 0;
  FirstError error;
  const auto run = [&] {
    for (size_t item = next++; item < count && error.Get().ok(); item = next++) error.Update(work(item));
  };
  const size_t started = std::min(count, static_cast<size_t>(threads));
  std::vector<std::thread> others;
  others.reserve(started);
  try {
    for (size_t i = 1; i < started; ++i) others.emplace_back(run);
  } catch (const std::system_error&) {
    // Thread limit reached: the threads that started process all items.
  }
  run();
  for (std::thread& other : others) other.join();
  return error.Get();
}

absl::Status ParallelFor(size_t count, int threads, const std::function<bool()>& stopped,
                         const std::function<absl::Status(size_t)>& work) {
  return ParallelFor(count, threads, [&](size_t item) {
    return stopped() ? absl::CancelledError("interrupted") : work(item);
  });
}

}  // namespace fsdpd
