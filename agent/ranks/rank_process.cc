#include "agent/ranks/rank_process.h"

#include <absl/strings/str_cat.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "agent/hang/hang_evidence.h"
#include "agent/ranks/pidfd.h"
#include "agent/ranks/process_tree.h"
#include "base/check.h"
#include "base/errno_status.h"
#include "base/process/shortage.h"
#include "base/rank/flight_recorder.h"

namespace fsdpd {
namespace {

constexpr int kRankSocket = 3;  // Descriptor of the socket to the agent in the rank.
static_assert(kFlightRecorderFd == kRankSocket + 1);
// Sources of dup2 are moved above the targets, so that no target overwrites one.
constexpr int kAboveTargets = 10;

// Users set it for other trainers. Here it would put all-gathers, reductions and compute into one hardware
// queue, where nothing overlaps.
constexpr char kOneConnection[] = "CUDA_DEVICE_MAX_CONNECTIONS=1";

absl::StatusOr<UniqueFd> MoveUp(int fd) {
  UniqueFd moved(fcntl(fd, F_DUPFD_CLOEXEC, kAboveTargets));
  if (!moved.valid()) return ErrnoStatus("fcntl");
  return moved;
}

// The environment of the rank: that of the agent without harmful variables, then the variables of the job,
// the mark, and the defaults that neither sets.
std::vector<std::string> Environment(const RankCommand& command) {
  std::map<std::string, std::string> set = command.defaults;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const char* equals = strchr(*variable, '=');
    if (equals == nullptr || strcmp(*variable, kOneConnection) == 0) continue;
    set[std::string(*variable, static_cast<size_t>(equals - *variable))] = equals + 1;
  }
  for (const auto& [name, value] : command.variables) set[name] = value;
  set[kRankMark] = command.mark;
  std::vector<std::string> variables;
  for (const auto& [name, value] : set) variables.push_back(absl::StrCat(name, "=", value));
  return variables;
}

std::vector<char*> Pointers(std::vector<std::string>* strings) {
  std::vector<char*> pointers;
  for (std::string& s : *strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The two option objects of posix_spawn, with the settings of a rank.
struct SpawnSettings {
  SpawnSettings(int socket, int log, int flight) {
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, log, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, log, STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&actions, socket, kRankSocket);
    if (flight >= 0) posix_spawn_file_actions_adddup2(&actions, flight, kFlightRecorderFd);
    posix_spawn_file_actions_addclosefrom_np(&actions, flight >= 0 ? kFlightRecorderFd + 1 : kRankSocket + 1);

    // The agent blocks and ignores some signals; a rank starts with the defaults.
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankProcess>> RankProcess::Spawn(const RankCommand& command) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return ErrnoStatus("socketpair");
  UniqueFd ours(pair[0]), theirs(pair[1]);
  FSDPD_ASSIGN_OR_RETURN(const UniqueFd socket, MoveUp(theirs.get()));
  FSDPD_ASSIGN_OR_RETURN(const UniqueFd log, MoveUp(command.log_fd));

  UniqueFd flight;
  if (command.flight_fd >= 0) {
    FSDPD_ASSIGN_OR_RETURN(flight, MoveUp(command.flight_fd));
  }
  SpawnSettings settings(socket.get(), log.get(), flight.get());
  // argv[0] as shown by ps: the mark is JOB/ATTEMPT/RANK.
  std::vector<std::string> arguments = {absl::StrCat("fsdpd-rank ", command.mark)};
  std::vector<std::string> environment = Environment(command);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, command.binary.c_str(), &settings.actions, &settings.attributes,
                                Pointers(&arguments).data(), Pointers(&environment).data());
  if (error != 0) {
    const std::string limits = error == EAGAIN ? OwnThreadLimits() : error == ENOMEM ? OwnMemoryLimits() : "";
    const absl::Status failed = ErrnoStatus(absl::StrCat("cannot start rank binary ", command.binary), error);
    return limits.empty() ? failed
                          : absl::Status(failed.code(), absl::StrCat(failed.message(), "; ", limits));
  }

  UniqueFd pidfd(PidfdOpen(pid));  // Our child and not reaped, so the pid still refers to the rank.
  if (!pidfd.valid()) {
    const int open_error = errno;
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return ErrnoStatus("pidfd_open", open_error);
  }
  return std::unique_ptr<RankProcess>(new RankProcess(pid, std::move(pidfd), std::move(ours), command.mark));
}

RankProcess::RankProcess(pid_t pid, UniqueFd pidfd, UniqueFd socket, std::string mark)
    : pid_(pid), pidfd_(std::move(pidfd)), socket_(std::move(socket)), mark_(std::move(mark)) {}

RankProcess::~RankProcess() {
  if (reaped_) return;
  SignalTree(SIGKILL);
  Reap();
}

std::optional<ProcessEnd> RankProcess::Exited() const {
  if (end_.has_value()) return end_;
  FSDPD_CHECK(!reaped_);
  siginfo_t info = {};
  if (waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return std::nullopt;
  ProcessEnd end;
  (info.si_code == CLD_EXITED ? end.exit_code : end.signal) = info.si_status;
  end_ = end;
  return end_;
}

bool RankProcess::Stopped() const {
  siginfo_t info = {};
  return !reaped_ && waitid(P_PID, pid_, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

char RankProcess::state() const {
  ProcessFacts facts;
  return ReadProcessFacts(pid_, &facts) ? facts.state : '?';
}

Evidence RankProcess::WriteEvidence(const std::string& path, const std::string& text) {
  return fsdpd::WriteEvidence(path, pid_, text);
}

bool RankProcess::ReadMembers() {
  absl::StatusOr<std::vector<ProcessFacts>> tree = ReadTree(pid_, mark_, members_);
  if (tree.ok()) members_ = *std::move(tree);
  return tree.ok();
}

void RankProcess::SignalTree(int signal) {
  FSDPD_CHECK(!reaped_);
  ReadMembers();        // If this fails, use the processes known from before.
  kill(-pid_, signal);  // One kill of the whole group, so that no process forks between two signals.
  for (const ProcessFacts& process : members_) {
    if (process.group != pid_ && process.alive()) SignalProcess(process, signal);
  }
}

bool RankProcess::TreeGone() {
  if (reaped_) return true;
  if (!Exited().has_value() || !ReadMembers()) return false;
  for (const ProcessFacts& process : members_) {
    // A zombie holds no memory and no device; its parent reaps it, or this process if it is the parent.
    if (process.alive()) return false;
  }
  for (const ProcessFacts& process : members_) {
    if (process.pid != pid_) waitpid(process.pid, nullptr, WNOHANG);
  }
  Reap();
  return true;
}

void RankProcess::Reap() {
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
}

absl::Status CheckRankBinary(const std::string& binary) {
  struct stat facts = {};
  if (stat(binary.c_str(), &facts) != 0) return ErrnoStatus(absl::StrCat("rank binary ", binary));
  if (S_ISREG(facts.st_mode) && access(binary.c_str(), X_OK) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("rank binary ", binary, " is not an executable file"));
}

absl::Status BecomeSubreaper() {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) return ErrnoStatus("PR_SET_CHILD_SUBREAPER");
  return absl::OkStatus();
}

void ReapOrphans(const std::vector<pid_t>& ranks) {
  while (true) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    // A dead rank is left to its owner, and waitid() would return it again and again; orphans wait until it
    // is reaped.
    if (std::binary_search(ranks.begin(), ranks.end(), info.si_pid)) return;
    waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

}  // namespace fsdpd
