#include "base/uncaught.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/shortage.h"

namespace fsdpd {
namespace {

constexpr unsigned kLongestTelling = 2;  // Seconds.

using Tell = std::function<void(const std::exception&)>;

Tell* teller = nullptr;  // Never destroyed: threads run until the process is gone.

[[noreturn]] void End() {
  static std::atomic<pid_t> first{0};
  pid_t before = 0;
  if (!first.compare_exchange_strong(before, gettid())) {
    if (before == gettid()) std::abort();  // Telling threw.
    for (;;) pause();
  }
  signal(SIGALRM, [](int) { std::abort(); });
  alarm(kLongestTelling);
  const std::exception_ptr uncaught = std::current_exception();
  if (uncaught == nullptr) std::abort();
  try {
    std::rethrow_exception(uncaught);
  } catch (const std::exception& error) {
    (*teller)(error);
  }
  std::fflush(nullptr);
  _exit(1);
}

}  // namespace

void EndOnUncaught(Tell tell) {
  teller = new Tell(std::move(tell));
  std::set_terminate(End);
}

void LogUncaught() {
  EndOnUncaught([](const std::exception& error) {
    if (const std::optional<Shortage> shortage = ShortageIn(error); shortage.has_value())
      return LogError("ends: %s", shortage->text);
    LogError("ends by an error that nobody reckoned with: %s", error.what());
  });
}

}  // namespace fsdpd
