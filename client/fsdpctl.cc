// main() of fsdpctl: signals, terminal and exit code around client/commands/commands.h.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "base/net/quiet_grpc.h"
#include "base/process/uncaught.h"
#include "client/commands/commands.h"
#include "client/connect/outcome.h"

namespace {

constexpr char kShowCursor[] = "\x1b[?25h";

int WidthOf(int terminal) {
  winsize size = {};
  if (ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  if (const char* columns = std::getenv("COLUMNS"); columns != nullptr && std::atoi(columns) > 0) {
    return std::atoi(columns);
  }
  return 80;
}

// Opens /dev/null for standard streams that the caller closed. Otherwise a file or socket that is opened
// later would get their descriptor, and receive the output. Stdin and stdout are opened read-only, so that
// writes to stdout fail as on a closed stream.
void ReserveStandardStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // open() returns the lowest free descriptor, which is that of this stream.
    (void)!open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// Whether lines can be redrawn: the stream is a terminal that supports cursor movement.
bool CanDraw(int stream) {
  const char* kind = std::getenv("TERM");
  return isatty(stream) != 0 && kind != nullptr && *kind != '\0' && std::strcmp(kind, "dumb") != 0;
}

// Shows the cursor, as the last write to the terminal. Stdout is redirected to /dev/null first, because
// another thread may still draw a live line, which hides the cursor.
void LeaveTerminal() {
  const int terminal = dup(STDOUT_FILENO);
  const int nothing = terminal < 0 ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nothing >= 0) dup2(nothing, STDOUT_FILENO);
  (void)!write(terminal < 0 ? STDOUT_FILENO : terminal, kShowCursor, sizeof(kShowCursor) - 1);
}

// REQUIRES: no other thread was started, so that all threads inherit the mask and only this one gets the
// signals.
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
    // Streams and waits end now because of the interrupt. A unary call or a backoff does not: the process
    // exits after one second, or immediately on a second signal.
    timespec patience = {1, 0};
    sigtimedwait(&signals, nullptr, &patience);
    if (terminal) LeaveTerminal();
    _exit(fsdpd::kExitInterrupted);
  }).detach();
}

}  // namespace

int main(int argc, char** argv) {
  ReserveStandardStreams();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  // Before signals are blocked and threads start, so that a plugin gets the process in its original state.
  if (const std::string program = fsdpd::PluginFor(arguments); !program.empty())
    return fsdpd::ExecPlugin(program, arguments);
  signal(SIGXFSZ, SIG_IGN);  // Exceeding a file size limit becomes an error of write().
  fsdpd::QuietGrpc();
  static const bool terminal = CanDraw(STDOUT_FILENO);
  // Not exit code 1, which means that a job has failed.
  fsdpd::EndOnUncaught(
      [](const std::exception& error) {
        if (terminal) LeaveTerminal();
        std::fprintf(stderr, "fsdpctl: %s [INTERNAL]\n", fsdpd::UncaughtText(error).c_str());
      },
      fsdpd::kExitFailed);
  static fsdpd::Interrupt interrupt;  // Outlives the detached thread's use.
  WatchSignals(&interrupt, terminal);
  fsdpd::Console console{std::cin, std::cout, std::cerr};
  console.terminal = terminal;
  console.color = terminal && std::getenv("NO_COLOR") == nullptr;
  if (isatty(STDOUT_FILENO) != 0) console.width = [] { return WidthOf(STDOUT_FILENO); };
  console.err_terminal = CanDraw(STDERR_FILENO);
  console.err_width = [] { return WidthOf(STDERR_FILENO); };
  console.interrupt = &interrupt;
  const int code = fsdpd::RunFsdpctl(arguments, &console);
  errno = 0;
  std::cout.flush();
  if (std::cout) return code;
  // The output is incomplete: the disk is full, or the pipe was closed.
  std::cerr << "fsdpctl: cannot write to stdout"
            << (errno != 0 ? std::string(": ") + std::strerror(errno) : "") << " [OUTPUT_NOT_WRITTEN]\n";
  return code == fsdpd::kExitOk ? fsdpd::kExitNotWritten : code;
}
