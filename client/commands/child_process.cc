#include "client/commands/child_process.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"

extern char** environ;

namespace fsdpd {
namespace {

struct Pipe {
  Pipe() { FSDPD_CHECK(pipe2(ends.data(), O_CLOEXEC) == 0); }
  ~Pipe() {
    CloseWriting();
    close(ends[0]);
  }
  void CloseWriting() {
    if (ends[1] >= 0) close(ends[1]);
    ends[1] = -1;
  }
  std::array<int, 2> ends;
};

// The child starts with an empty signal mask, because client/fsdpctl.cc blocks SIGINT and SIGTERM.
pid_t Spawn(std::vector<std::string>* arguments, const Pipe& out, const Pipe& err, int* error) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.ends[1], STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> pointers;
  for (std::string& argument : *arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t child = -1;
  *error = posix_spawn(&child, pointers[0], &actions, &attributes, pointers.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

// Returns false at end of file.
bool ReadSome(int fd, std::string* text) {
  char buffer[4096];
  const ssize_t n = read(fd, buffer, sizeof(buffer));
  if (n > 0) text->append(buffer, n);
  return n > 0 || (n < 0 && errno == EINTR);
}

std::string ReadAll(const Pipe& out, const Pipe& err,
                    const std::function<void(absl::string_view)>& on_stderr) {
  std::string output;
  pollfd pipes[] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
  while (pipes[0].fd >= 0 || pipes[1].fd >= 0) {
    if (poll(pipes, 2, -1) < 0) continue;  // EINTR.
    if (pipes[0].revents != 0 && !ReadSome(pipes[0].fd, &output)) pipes[0].fd = -1;
    std::string chunk;
    if (pipes[1].revents != 0 && !ReadSome(pipes[1].fd, &chunk)) pipes[1].fd = -1;
    if (!chunk.empty()) on_stderr(chunk);
  }
  return output;
}

}  // namespace

absl::StatusOr<ChildResult> RunChild(std::vector<std::string> arguments, Interrupt* interrupt,
                                     const std::function<void(absl::string_view)>& on_stderr) {
  Pipe out, messages;
  int error = 0;
  const pid_t child = Spawn(&arguments, out, messages, &error);
  if (error != 0) return absl::NotFoundError(absl::StrCat(arguments[0], ": ", std::strerror(error)));
  out.CloseWriting();
  messages.CloseWriting();
  ChildResult result;
  int status = 0;
  {
    // The interrupt may only kill the child before waitpid() reaps it: afterwards its pid may be reused.
    // Hence WNOWAIT inside the scope, and waitpid() after it.
    Interrupt never;
    const Interrupt::Scope scope(interrupt == nullptr ? &never : interrupt,
                                 [child] { kill(child, SIGKILL); });
    result.output = ReadAll(out, messages, on_stderr);
    siginfo_t ended;
    while (waitid(P_PID, child, &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
    }
  }
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (interrupt != nullptr && interrupt->fired()) return absl::CancelledError("interrupted");
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return result;
}

}  // namespace fsdpd
