// A rank's process as the supervisor sees it: how it is asked to end, seen to end and proven gone. The real
// one is rank_process.h; in a simulation it is a rank's behaviour without a process (tests/sim).
//
// Thread safety: none; one thread owns it.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/hang_evidence.h"
#include "base/unique_fd.h"

namespace fsdpd {

struct RankCommand {
  std::string binary;  // Absolute, or relative to the agent's directory.
  std::string mark;    // Value of kRankMark in the environment of the tree; unique per rank and attempt.
  std::map<std::string, std::string> variables;  // Set whatever the agent's environment has.
  std::map<std::string, std::string> defaults;   // Set unless the agent or `variables` has them.
  int log_fd = -1;                               // Open for appending; borrowed.
  int flight_fd = -1;                            // Of MakeFlightRecorder(); borrowed. -1: it gets none.
};

struct ProcessEnd {
  int exit_code = 0;  // Valid when signal is 0.
  int signal = 0;
};

class RankBody {
 public:
  virtual ~RankBody() = default;  // Kills and reaps what is still there.

  virtual pid_t pid() const = 0;
  virtual int pidfd() const = 0;      // Readable once the rank has ended.
  virtual UniqueFd TakeSocket() = 0;  // To it; once.

  virtual std::optional<ProcessEnd> Exited() const = 0;
  virtual char state() const = 0;    // As in /proc/PID/stat; '?' when not known.
  virtual bool Stopped() const = 0;  // By SIGSTOP or its like, and not continued.

  // To every live process of the tree. It may fork meanwhile: repeat until TreeGone().
  virtual void SignalTree(int signal) = 0;
  // True when no process of the tree is left; from then on the rank is reaped and its number means nothing.
  virtual bool TreeGone() = 0;

  // Begins to write `text`, and what else can be seen of it, to a file: null when it cannot now.
  virtual Evidence WriteEvidence(const std::string& path, const std::string& text) = 0;
};

// Errors: NOT_FOUND when the binary is missing, else UNAVAILABLE.
using SpawnRank = std::function<absl::StatusOr<std::unique_ptr<RankBody>>(const RankCommand& command)>;

}  // namespace fsdpd
