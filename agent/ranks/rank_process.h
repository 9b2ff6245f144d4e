// The process of one rank and all of its descendants. It owns how a rank is spawned, how its exit is observed
// and how its process tree is proven gone.
//
//   Spawn -> Exited (poll pidfd()) ... SignalTree ... -> TreeGone() == true -> destroy
//
// Uses posix_spawn, never fork, because gRPC threads are running. The rank leads its own session and process
// group, has /dev/null as stdin, its log as stdout and stderr, its end of the socket pair as descriptor 3,
// its flight recorder (base/rank/flight_recorder.h) as descriptor 4, and no other open descriptors. It must
// exit on its own when descriptor 3 closes, which handles an agent that was killed.
//
// A dead rank remains a zombie until its whole tree is gone, so that its pid, and with it the group and
// session id, cannot be reused in between.
//
// REQUIRES: BecomeSubreaper() before the first Spawn; no other code of this process waits for children. Not
// thread-safe; one thread owns it. Errors: NOT_FOUND if the binary is missing, else UNAVAILABLE.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/ranks/process_tree.h"
#include "agent/ranks/rank_body.h"
#include "base/unique_fd.h"

namespace fsdpd {

class RankProcess final : public RankBody {
 public:
  static absl::StatusOr<std::unique_ptr<RankProcess>> Spawn(const RankCommand& command);

  ~RankProcess() override;
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  pid_t pid() const override { return pid_; }
  int pidfd() const override { return pidfd_.get(); }
  UniqueFd TakeSocket() override { return std::move(socket_); }
  std::optional<ProcessEnd> Exited() const override;
  char state() const override;
  bool Stopped() const override;
  void SignalTree(int signal) override;
  bool TreeGone() override;
  Evidence WriteEvidence(const std::string& path, const std::string& text) override;

 private:
  RankProcess(pid_t pid, UniqueFd pidfd, UniqueFd socket, std::string mark);
  bool ReadMembers();
  void Reap();

  const pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd socket_;
  const std::string mark_;
  std::vector<ProcessFacts> members_;      // Processes of the tree, as last read.
  mutable std::optional<ProcessEnd> end_;  // Set once observed; remains after the process was reaped.
  bool reaped_ = false;
};

// NOT_FOUND if there is no such file, FAILED_PRECONDITION if it is not executable.
absl::Status CheckRankBinary(const std::string& binary);

// Makes orphans of ranks children of this process instead of init. Once per process.
absl::Status BecomeSubreaper();

// Reaps orphans that have exited; `ranks` (sorted) are left to their owners.
void ReapOrphans(const std::vector<pid_t>& ranks);

}  // namespace fsdpd
