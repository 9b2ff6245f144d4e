// One rank's process and everything that it started. It owns how a rank is spawned, how its end is seen and
// how its tree is proven gone.
//
//   Spawn -> Exited (poll pidfd()) ... SignalTree ... -> TreeGone() == true -> destroy
//
// Spawned with posix_spawn, never fork: threads of gRPC are running. The rank leads a session and a process
// group of its own, has /dev/null as stdin, its log as stdout and stderr, its end of the socket pair as
// descriptor 3, its flight page (base/flight_page.h) as descriptor 4 and nothing else open. It must exit by
// itself when descriptor 3 closes: that covers an agent that was killed.
//
// The dead rank stays a zombie until its whole tree is gone, so that its number, and with it the group and
// the session, cannot be given to somebody else in between.
//
// REQUIRES: BecomeSubreaper() before the first Spawn; nobody else in this process waits for children.
// Thread safety: none; one thread owns it. Errors: NOT_FOUND when the binary is missing, else UNAVAILABLE.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/process_tree.h"
#include "agent/unique_fd.h"

namespace fsdpd {

struct RankCommand {
  std::string binary;  // Absolute, or relative to the agent's folder.
  std::string mark;    // Value of kRankMark in the environment of the tree; unique per rank and attempt.
  std::map<std::string, std::string> variables;  // Set whatever the agent's environment has.
  std::map<std::string, std::string> defaults;   // Set unless the agent or `variables` has them.
  int log_fd = -1;                               // Open for appending; borrowed.
  int flight_fd = -1;                            // Of MakeFlightPage(); borrowed. -1: it gets none.
};

struct ProcessEnd {
  int exit_code = 0;  // Valid when signal is 0.
  int signal = 0;
};

class RankProcess {
 public:
  static absl::StatusOr<std::unique_ptr<RankProcess>> Spawn(const RankCommand& command);

  // Kills and reaps what is still there.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // Readable once the rank has ended.
  UniqueFd TakeSocket() { return std::move(socket_); }

  std::optional<ProcessEnd> Exited() const;
  bool Stopped() const;  // By SIGSTOP or its like, and not continued.

  // To every live process of the tree. It may fork meanwhile: repeat until TreeGone().
  void SignalTree(int signal);

  // True when no process of the tree is left; from then on the rank is reaped and its number means nothing.
  bool TreeGone();

 private:
  RankProcess(pid_t pid, UniqueFd pidfd, UniqueFd socket, std::string mark);
  bool ReadMembers();
  void Reap();

  const pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd socket_;
  const std::string mark_;
  std::vector<ProcessFacts> members_;  // Of the tree, as last read.
  bool reaped_ = false;
};

// NOT_FOUND when there is no such file, FAILED_PRECONDITION when it is none that can be run.
absl::Status CheckRankBinary(const std::string& binary);

// Orphans of ranks become children of this process instead of init's. Once per process.
absl::Status BecomeSubreaper();

// Collects orphans that have ended; `ranks` (sorted) are left to their owners.
void ReapOrphans(const std::vector<pid_t>& ranks);

}  // namespace fsdpd
