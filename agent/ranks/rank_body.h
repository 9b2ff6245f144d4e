// Interface of the process of a rank, as the supervisor uses it: how it is signalled, observed to exit and
// proven gone. The implementation is rank_process.h; tests/sim simulates ranks without processes.
//
// Not thread-safe; one thread owns it.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/hang/hang_evidence.h"
#include "base/unique_fd.h"

namespace fsdpd {

struct RankCommand {
  std::string binary;  // Absolute, or relative to the working directory of the agent.
  std::string mark;    // Value of kRankMark in the environment; unique per rank and attempt.
  std::map<std::string, std::string> variables;  // Override the environment of the agent.
  std::map<std::string, std::string> defaults;   // Used if neither the agent nor `variables` sets them.
  int log_fd = -1;                               // Open for appending; borrowed.
  int flight_fd = -1;                            // From MakeFlightRecorder(); borrowed. -1: none.
};

struct ProcessEnd {
  int exit_code = 0;  // Valid if signal is 0.
  int signal = 0;
};

class RankBody {
 public:
  virtual ~RankBody() = default;  // Kills and reaps remaining processes.

  virtual pid_t pid() const = 0;
  virtual int pidfd() const = 0;      // Becomes readable when the rank exits.
  virtual UniqueFd TakeSocket() = 0;  // Socket to the rank; call once.

  virtual std::optional<ProcessEnd> Exited() const = 0;
  virtual char state() const = 0;    // As in /proc/PID/stat; '?' if unknown.
  virtual bool Stopped() const = 0;  // Stopped by a signal and not continued.

  // Signals every live process of the tree. Repeat until TreeGone(): it may fork meanwhile.
  virtual void SignalTree(int signal) = 0;
  // True if no process of the tree is left. The rank is then reaped and its pid is invalid.
  virtual bool TreeGone() = 0;

  // Starts to write `text` and other evidence to a file; null if that is not possible now.
  virtual Evidence WriteEvidence(const std::string& path, const std::string& text) = 0;
};

// Errors: NOT_FOUND if the binary is missing, else UNAVAILABLE.
using SpawnRank = std::function<absl::StatusOr<std::unique_ptr<RankBody>>(const RankCommand& command)>;

}  // namespace fsdpd
