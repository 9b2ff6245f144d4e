// Test thread that distinguishes a blocked call from one that returns, without a timeout that decides the
// result.
#pragma once

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>

namespace fsdpd {

// Runs `work` on its own thread. Join() and the destructor wait for it.
class WatchedThread {
 public:
  explicit WatchedThread(std::function<void()> work)
      : thread_([this, work = std::move(work)] {
          id_ = syscall(SYS_gettid);
          work();
          ended_ = true;
        }) {}
  ~WatchedThread() { Join(); }
  WatchedThread(const WatchedThread&) = delete;
  WatchedThread& operator=(const WatchedThread&) = delete;

  // Returns true when `work` ended, and false once the kernel showed the thread asleep in kLooks consecutive
  // samples.
  bool EndsBeforeItBlocks() const {
    for (int asleep = 0; asleep < kLooks && !ended_;) {
      asleep = IsAsleep() ? asleep + 1 : 0;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return ended_;
  }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  // Writing a log line or waiting briefly for a lock takes fewer samples than this.
  static constexpr int kLooks = 20;

  // "ID (NAME) STATE ..."
  bool IsAsleep() const {
    if (id_ == 0) return false;
    std::ifstream file(absl::StrCat("/proc/self/task/", id_.load(), "/stat"));
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(')');
    return name_end != std::string::npos && text.compare(name_end + 1, 2, " S") == 0;
  }

  std::atomic<int64_t> id_{0};
  std::atomic<bool> ended_{false};
  std::thread thread_;  // Last: starts when all other members exist.
};

}  // namespace fsdpd
