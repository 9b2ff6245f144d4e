// fsdpctl: the process around client/commands.h. It owns signals, the terminal and the exit code.
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "client/commands.h"
#include "client/outcome.h"

namespace {

constexpr char kShowCursor[] = "\x1b[?25h";

int TerminalWidth() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  if (const char* columns = std::getenv("COLUMNS"); columns != nullptr && std::atoi(columns) > 0) {
    return std::atoi(columns);
  }
  return 80;
}

// REQUIRES: no other thread was started, so that all inherit the mask and only this one takes the signals.
void WatchSignals(fsdpd::Interrupt* interrupt, bool terminal) {
  static sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([interrupt, terminal] {
    int signal = 0;
    sigwait(&signals, &signal);
    interrupt->Fire();
    // What follows a stream ends by itself now. What does not (a call, a pause between two) is left here, as
    // is everything at a second signal.
    timespec patience = {1, 0};
    sigtimedwait(&signals, nullptr, &patience);
    if (terminal) (void)!write(STDOUT_FILENO, kShowCursor, sizeof(kShowCursor) - 1);
    _exit(fsdpd::kExitInterrupted);
  }).detach();
}

}  // namespace

int main(int argc, char** argv) {
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  static fsdpd::Interrupt interrupt;  // Outlives the detached thread's use.
  WatchSignals(&interrupt, terminal);
  fsdpd::Console console{std::cin, std::cout, std::cerr};
  console.terminal = terminal;
  console.color = terminal && std::getenv("NO_COLOR") == nullptr;
  if (terminal) console.width = TerminalWidth;
  console.interrupt = &interrupt;
  const int code = fsdpd::RunFsdpctl(std::vector<std::string>(argv + 1, argv + argc), &console);
  errno = 0;
  std::cout.flush();
  if (std::cout) return code;
  // A full disk or a closed pipe: what was asked for did not arrive.
  std::cerr << "fsdpctl: cannot write to stdout"
            << (errno != 0 ? std::string(": ") + std::strerror(errno) : "") << "\n";
  return code == fsdpd::kExitOk ? fsdpd::kExitNotWritten : code;
}
