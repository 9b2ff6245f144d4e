// One rank's process and everything that it started. It owns how a rank is spawned, how its end is seen and
// how its tree is proven gone.
//
//   Spawn -> Exited (poll pidfd()) ... SignalTree ... -> TreeGone() == true -> destroy
//
// Spawned with posix_spawn, never fork: threads of gRPC are running. The rank leads a session and a process
// group of its own, has /dev/null as stdin, its log as stdout and stderr, its end of the socket pair as
// descriptor 3, its flight recorder (base/flight_recorder.h) as descriptor 4 and nothing else open. It must
// exit by itself when descriptor 3 closes: that covers an agent that was killed.
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

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/process_tree.h"
#include "agent/rank_body.h"
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
  std::vector<ProcessFacts> members_;      // Of the tree, as last read.
  mutable std::optional<ProcessEnd> end_;  // Once it was seen; the process itself may be reaped since.
  bool reaped_ = false;
};

// NOT_FOUND when there is no such file, FAILED_PRECONDITION when it is none that can be run.
absl::Status CheckRankBinary(const std::string& binary);

// Orphans of ranks become children of this process instead of init's. Once per process.
absl::Status BecomeSubreaper();

// Collects orphans that have ended; `ranks` (sorted) are left to their owners.
void ReapOrphans(const std::vector<pid_t>& ranks);

}  // namespace fsdpd
