#include "base/process/uncaught.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/process/shortage.h"

namespace fsdpd {
namespace {

constexpr unsigned kMaxReportSeconds = 2;  // Seconds.

using Report = std::function<void(const std::exception&)>;

// Never destroyed: threads run until the process exits.
Report* reporter = nullptr;
int exit_status = 1;
// Handler of the standard library, which prints the type of the exception and aborts.
std::terminate_handler default_handler = nullptr;

void GiveUp(int /*signal*/) {
  constexpr char kWords[] = "uncaught exception could not be reported\n";
  (void)!write(STDERR_FILENO, kWords, sizeof(kWords) - 1);
  std::abort();
}

[[noreturn]] void End() {
  static std::atomic<pid_t> first{0};
  pid_t before = 0;
  if (!first.compare_exchange_strong(before, gettid())) {
    if (before == gettid()) std::abort();
    for (;;) pause();
  }
  signal(SIGALRM, GiveUp);
  alarm(kMaxReportSeconds);
  ReleaseShortageReserve();
  const std::exception_ptr uncaught = std::current_exception();
  if (uncaught == nullptr) default_handler();
  try {
    std::rethrow_exception(uncaught);
  } catch (const std::exception& error) {
    try {
      (*reporter)(error);
    } catch (...) {
      default_handler();
    }
  } catch (...) {
    default_handler();
  }
  std::fflush(nullptr);
  _exit(exit_status);
}

}  // namespace

void EndOnUncaught(Report tell, int exit_code) {
  KeepShortageReserve();
  exit_status = exit_code;
  reporter = new Report(std::move(tell));
  const std::terminate_handler before = std::set_terminate(End);
  if (before != End) default_handler = before;
}

std::string UncaughtText(const std::exception& error) {
  if (std::optional<Shortage> shortage = ShortageIn(error); shortage.has_value())
    return std::move(shortage->text);
  return std::string("unexpected error: ") + error.what();
}

void LogUncaught() {
  EndOnUncaught([](const std::exception& error) { LogError("exiting: %s", UncaughtText(error)); });
}

}  // namespace fsdpd
