// fsdpctl: the process around client/commands.h. It owns signals, the terminal and the exit code.
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

#include "base/quiet_grpc.h"
#include "base/uncaught.h"
#include "client/commands.h"
#include "client/outcome.h"

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

// A file or socket that is opened later must not become the stdout of somebody who closed it, and get what is
// printed. What stands in fails as a closed one does: nothing can be written to it, or everything is lost.
void KeepStandardStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // The lowest number that is free is this stream's.
    (void)!open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// Lines can be drawn over there: it is a terminal, and knows how to move the cursor.
bool CanDraw(int stream) {
  const char* kind = std::getenv("TERM");
  return isatty(stream) != 0 && kind != nullptr && *kind != '\0' && std::strcmp(kind, "dumb") != 0;
}

// Shows the cursor as the last write to the terminal. Another thread may still draw a line, which hides the
// cursor, so stdout goes to /dev/null first.
void LeaveTerminal() {
  const int terminal = dup(STDOUT_FILENO);
  const int nothing = terminal < 0 ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nothing >= 0) dup2(nothing, STDOUT_FILENO);
  (void)!write(terminal < 0 ? STDOUT_FILENO : terminal, kShowCursor, sizeof(kShowCursor) - 1);
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
    if (terminal) LeaveTerminal();
    _exit(fsdpd::kExitInterrupted);
  }).detach();
}

}  // namespace

int main(int argc, char** argv) {
  KeepStandardStreams();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  // Before signals are blocked and threads begin: the program gets the process as its caller made it.
  if (const std::string program = fsdpd::ProgramOf(arguments); !program.empty())
    return fsdpd::RunInstead(program, arguments);
  signal(SIGXFSZ, SIG_IGN);  // A file that a limit cuts off is an error of who writes it.
  fsdpd::QuietGrpc();
  static const bool terminal = CanDraw(STDOUT_FILENO);
  // 1 would say that a job has failed.
  fsdpd::EndOnUncaught(
      [](const std::exception& error) {
        if (terminal) LeaveTerminal();
        std::fprintf(stderr, "fsdpctl: %s\n", fsdpd::UncaughtText(error).c_str());
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
  // A full disk or a closed pipe: what was asked for did not arrive.
  std::cerr << "fsdpctl: cannot write to stdout"
            << (errno != 0 ? std::string(": ") + std::strerror(errno) : "") << "\n";
  return code == fsdpd::kExitOk ? fsdpd::kExitNotWritten : code;
}
